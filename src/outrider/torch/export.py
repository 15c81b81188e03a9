"""Export a model: for another engine, or for this one with other weight types.

`formats.readers.marian` maps the names of transformers' Marian model.
"""

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging

from outrider.errors import ConfigError, ModelError
from outrider.files import working_folder
from outrider.files.hub import model_folder
from outrider.formats.folder import model_files
from outrider.formats.layout import check_exportable
from outrider.formats.quantised import (
    INT4,
    INT8,
    SCALE,
    check_parts,
    check_width,
    int4_groups,
    int8_rows,
    is_int4,
)
from outrider.formats.readers.marian import CONFIG, stacked_names
from outrider.formats.safetensors import Weight
from outrider.formats.weights import DTYPES, read_weights, weight_files
from outrider.runtime.options import GenerationSettings
from outrider.text.tokenizer import SubwordTokenizer, Tokenizer, load_tokenizer
from outrider.text.tokenizer.marian import MarianTokenizer
from outrider.text.tokenizer.sentencepiece_export import write_sentencepiece
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Seq2Seq, load_model
from outrider.torch.models.ctranslate2 import TokenNames, to_ctranslate2
from outrider.torch.models.folder import as_tensor

ACTIVATIONS = {"silu": "swish", "gelu_tanh": "gelu_new"}
"""Marian's names of activations, where they differ."""
SUPPORTED: dict[str, Sequence[Any]] = {
    "norm": ["post"],
    "position": ["sinusoidal"],
    "gated": [False],
    "tie_word_embeddings": [True],
}


def to_marian(model: Seq2Seq) -> MarianMTModel:
    """Return transformers' model with these weights; fails if Marian lacks a part."""
    config = model.config
    check_exportable(config, "Marian", SUPPORTED)
    theirs = MarianConfig(
        **{their: getattr(config, ours) for ours, their in CONFIG.items()},
        decoder_attention_heads=config.num_attention_heads,
        decoder_ffn_dim=config.intermediate_size,
        activation_function=ACTIVATIONS.get(config.activation, config.activation),
        forced_eos_token_id=None,
    )
    marian = MarianMTModel(theirs)
    with torch.no_grad():
        weights = marian.state_dict()
        for name, parts in stacked_names(config):
            pieces = model.get_parameter(name).chunk(len(parts))
            for part, piece in zip(parts, pieces, strict=True):
                weights[part].copy_(piece)
        if model.logits_bias is not None:
            marian.final_logits_bias.copy_(model.logits_bias)
    return marian.to(model.dtype).eval()


SIDE_DECODERS = ("drafter", "ctc")
"""Subfolders of a model with weights of their own."""


def export_marian(model: str | Path, folder: str | Path) -> Path:
    """Export as a Marian folder that transformers and converters of Marian can read."""
    source = model_folder(model)
    loaded, tokenizer = load_model(source), load_tokenizer(source)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{source}: is a language model; Marian models translate")
    exported = to_marian(loaded)
    logging.disable_progress_bar()
    with _new_folder(Path(folder)) as draft:
        exported.save_pretrained(draft)
        if isinstance(tokenizer, SubwordTokenizer):
            write_sentencepiece(tokenizer, draft)
        else:
            tokenizer.save(draft)
    return Path(folder)


def export_ctranslate2(
    model: str | Path, folder: str | Path, *, quantization: str = "float32"
) -> Path:
    """Export as a CTranslate2 folder, with the tokenizer beside the weights."""
    source = model_folder(model)
    loaded, tokenizer = load_model(source), load_tokenizer(source)
    if not isinstance(loaded, Seq2Seq):
        raise ModelError(f"{source}: is a language model; only models that translate are exported")
    suppress = GenerationSettings(source).defaults(TorchBackend(loaded))["suppress"]
    spec = to_ctranslate2(
        loaded, _token_names(tokenizer), suppress=suppress, quantization=quantization
    )
    with _new_folder(Path(folder)) as draft:
        spec.save(str(draft))
        tokenizer.save(draft)
    return Path(folder)


def export_copy(
    model: str | Path, folder: str | Path, *, dtype: str, int4: Collection[str] = ()
) -> Path:
    """Copy the folder, with drafter and CTC decoder, converting weights to `dtype`.

    Args:
        model: A model folder, file or Hub name.
        folder: The folder to write.
        dtype: float32, bfloat16 or float16; or int8, which the native core computes in.
        int4: Parts stored as int4 when `dtype` is int8: `embeddings`, `feedforward`. For models
            trained with that rounding; others lose quality.
    """
    source = model_folder(model)
    kinds = (*DTYPES, INT8)
    if dtype not in kinds:
        raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(kinds)}")
    check_parts(int4)
    if int4 and dtype != INT8:
        raise ConfigError("int4", f"goes with dtype {INT8}, got {dtype}")
    loaded = load_model(source)  # checks the folder
    with _new_folder(Path(folder)) as draft:
        if weight_files(source) != model_files(source):  # a foreign format: converted
            loaded.save_pretrained(draft)
            load_tokenizer(source).save(draft)
            _write_weights(draft, draft, dtype, int4)
            return Path(folder)
        for part in (".", *SIDE_DECODERS):
            if (source / part / "config.json").is_file():
                _copy_part(source / part, draft / part, dtype, int4)
    return Path(folder)


def _token_names(tokenizer: Tokenizer) -> TokenNames:
    """Return the token names of both sides."""
    if isinstance(tokenizer, MarianTokenizer):
        sides = tokenizer.names
    elif isinstance(tokenizer, SubwordTokenizer):
        ids = tokenizer.pipeline.get_vocab(with_added_tokens=True)
        sides = (ids, ids)
    else:
        raise ModelError("a source with a tokenizer of its own cannot be exported")
    source, target = ({index: name for name, index in ids.items()} for ids in sides)
    places = range(tokenizer.vocab_size)
    return TokenNames(
        [source.get(place, f"<unused {place}>") for place in places],
        [target.get(place, f"<unused {place}>") for place in places],
        tokenizer.unk_id,
    )


def _copy_part(source: Path, target: Path, dtype: str, int4: Collection[str]) -> None:
    target.mkdir(exist_ok=True)
    _write_weights(source, target, dtype, int4)
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(("model", ".")):
            shutil.copyfile(path, target / path.name)


def _write_weights(source: Path, target: Path, dtype: str, int4: Collection[str]) -> None:
    """Write the weights of a folder as `dtype`; source and target may be the same folder."""
    converted: dict[str, Tensor] = {}
    for name, weight in read_weights(source).items():
        if dtype == INT8 and _is_matrix(name, weight):
            bits = INT4 if is_int4(name, int4) else INT8
            converted |= _quantised(name, weight, bits)
            continue
        tensor = as_tensor(weight)
        floating = tensor.is_floating_point() and dtype != INT8
        converted[name] = tensor.to(getattr(torch, dtype)) if floating else tensor.clone()
    save_file(converted, target / "model.safetensors", metadata={"format": "pt"})


def _is_matrix(name: str, weight: Weight) -> bool:
    """Whether a weight is a matrix product or a token embedding; position tables stay exact."""
    other = name.endswith(("table.weight", "slot.weight"))
    return len(weight.shape) == 2 and name.endswith(".weight") and not other


def _quantised(name: str, weight: Weight, bits: str) -> dict[str, Tensor]:
    """Return a quantised weight and its scales."""
    if weight.kind == bits and weight.scale is not None:  # already quantised
        parts = (weight.data, weight.scale)
    elif bits == INT8:
        parts = int8_rows(weight.as_float32())
    else:
        check_width(name, weight.shape[1])
        parts = int4_groups(weight.as_float32())
    names = (name, name + SCALE)
    return {key: torch.from_numpy(part.copy()) for key, part in zip(names, parts, strict=True)}


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `target` when it is complete."""
    if target.exists():
        raise ModelError(f"{target}: exists already; name a new folder")
    with working_folder(target) as draft:
        yield draft
