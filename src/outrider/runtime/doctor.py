"""Diagnoses an installation: what it has, which backend it uses, and what is wrong.

The report comes from `load` itself and from a self-check of the native core with a tiny model. In
float32 the core must give the logits of `plain_logits`. In int8, tandem and greedy decoding must
give the same texts, because a row may not depend on its batch or block.

`plain_logits` is a plain encoder-decoder in numpy, float64:

    norm(x)       = (x - mean) / sqrt(variance + 1e-5) * g + b
    attend(q,k,v) = softmax(q k' / sqrt(K)) v                           per head
    layer(x)      = x + attend(norm(x)); with a source x + attend(norm(x), source); x + F(norm(x))
    F(x)          = W2 relu(W1 x + b1) + b2
    logits        = norm(layers(scale e(y) + position)) H' + bias

It computes one text at a time, without a cache, with sinusoidal positions.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.backends import native
from outrider.backends.native import NativeBackend
from outrider.backends.native_parts import missing
from outrider.decoding import Backend, DecodeConfig, Request, decode
from outrider.decoding.queries import Logits
from outrider.errors import FallbackWarning, OutriderError
from outrider.files.hub import model_folder
from outrider.formats.folder import CTC, DRAFTER, Part, Parts, model_files, read_model
from outrider.formats.layout import drafter_layout, model_layout
from outrider.formats.safetensors import Weight
from outrider.formats.side_spec import DrafterSpec
from outrider.formats.spec import Seq2SeqSpec
from outrider.formats.weights import Expected, read_weights, weight_files
from outrider.runtime.backend import VARIABLE, choose_backend, choose_device, gpu_names
from outrider.runtime.load import load
from outrider.runtime.provenance import machine, versions
from outrider.runtime.translator import Translator

Array = NDArray[np.float64]
Weights = Mapping[str, NDArray[np.float32]]


def plain_logits(
    config: Seq2SeqSpec, weights: Weights, source: Sequence[int], tokens: Sequence[int]
) -> Array:
    """Return the logits after each token, [T, V], of a plain encoder-decoder."""
    plain = Seq2SeqSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        tie_word_embeddings=False,
        logits_bias=True,
    )
    assert config == plain, "only the plain parts are implemented here"
    memory_SD = _embed(config, weights, source)
    for layer in range(config.encoder_layers):
        memory_SD = _layer(config, weights, f"encoder.blocks.{layer}", memory_SD, None)
    memory_SD = _norm(weights, "encoder.norm", memory_SD)
    x_TD = _embed(config, weights, tokens)
    for layer in range(config.decoder_layers):
        x_TD = _layer(config, weights, f"decoder.blocks.{layer}", x_TD, memory_SD)
    x_TD = _norm(weights, "decoder.norm", x_TD)
    logits_TV: Array = x_TD @ weights["head.weight"].T.astype(np.float64)
    return logits_TV + weights["logits_bias"]


def _embed(config: Seq2SeqSpec, weights: Weights, tokens: Sequence[int]) -> Array:
    x_TD = weights["tokens.weight"][list(tokens)].astype(np.float64) * config.embedding_scale
    half = config.hidden_size // 2
    angle_TE = np.arange(len(tokens))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    return x_TD + np.concatenate([np.sin(angle_TE), np.cos(angle_TE)], axis=1)


def _layer(
    config: Seq2SeqSpec, weights: Weights, name: str, x_TD: Array, memory_SD: Array | None
) -> Array:
    heads = config.num_attention_heads
    inner_TD = _norm(weights, f"{name}.attention_residual.norm", x_TD)
    q, k, v = np.split(_linear(weights, f"{name}.attention.qkv", inner_TD), 3, axis=1)
    out_TD = _attend(q, k, v, heads, causal=memory_SD is not None)
    x_TD = x_TD + _linear(weights, f"{name}.attention.out", out_TD)
    if memory_SD is not None:
        inner_TD = _norm(weights, f"{name}.cross_residual.norm", x_TD)
        q = _linear(weights, f"{name}.cross.q", inner_TD)
        k, v = np.split(_linear(weights, f"{name}.cross.kv", memory_SD), 2, axis=1)
        out_TD = _attend(q, k, v, heads, causal=False)
        x_TD = x_TD + _linear(weights, f"{name}.cross.out", out_TD)
    inner_TD = _norm(weights, f"{name}.feedforward_residual.norm", x_TD)
    up_TF = np.maximum(_linear(weights, f"{name}.feedforward.up", inner_TD), 0)
    return x_TD + _linear(weights, f"{name}.feedforward.down", up_TF)


def _attend(q_TD: Array, k_SD: Array, v_SD: Array, heads: int, *, causal: bool) -> Array:
    out = []
    for q_TK, k_SK, v_SK in zip(
        *(np.split(x, heads, axis=1) for x in (q_TD, k_SD, v_SD)), strict=True
    ):
        score_TS = q_TK @ k_SK.T / np.sqrt(q_TK.shape[1])
        if causal:
            score_TS[np.triu_indices(len(score_TS), 1)] = -np.inf
        mass_TS = np.exp(score_TS - score_TS.max(1, keepdims=True))
        out.append(mass_TS / mass_TS.sum(1, keepdims=True) @ v_SK)
    return np.concatenate(out, axis=1)


def _linear(weights: Weights, name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T.astype(np.float64) + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, x: Array) -> Array:
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


TOLERANCE = 1e-4
"""Largest accepted error of a float32 logit."""
_TEXTS, _TOKENS, _BLOCK, _VOCAB_SIZE = 5, 12, 6, 97


@dataclass(frozen=True)
class SelfCheck:
    """Result of the self-check."""

    float32_error: float
    """Largest error of a float32 logit."""
    differing: int
    """Texts that differ between int8 tandem and int8 greedy."""
    seconds: float

    @property
    def fault(self) -> str | None:
        """The fault in a sentence; None if there is none."""
        if not self.float32_error <= TOLERANCE:  # also true for nan
            return f"float32 logits are {self.float32_error:.1e} off those of numpy"
        if self.differing:
            return f"int8 tandem differs from int8 greedy on {self.differing} of {_TEXTS} texts"
        return None


def check_native() -> SelfCheck:
    """Compare the core with `plain_logits`, and its blocks with single steps."""
    start = perf_counter()
    dice = np.random.default_rng(0)
    parts, config = make_model(dice)
    sources = [dice.integers(4, _VOCAB_SIZE, 9 - text).tolist() for text in range(_TEXTS)]
    tokens = dice.integers(4, _VOCAB_SIZE, (_TEXTS, _TOKENS)).tolist()
    arrays = {name: weight.as_float32() for name, weight in parts.model.weights.items()}
    expected_NTV = np.stack(
        [plain_logits(config, arrays, *row) for row in zip(sources, tokens, strict=True)]
    )
    core = NativeBackend(Parts(parts.model), dtype="float32")
    logits_NTV = core.extend(tokens, core.encode(sources, capacity=_TOKENS), Logits())
    return SelfCheck(
        float32_error=float(abs(expected_NTV - logits_NTV).max()),
        differing=_count_differing(NativeBackend(parts), sources),
        seconds=perf_counter() - start,
    )


def make_model(dice: np.random.Generator) -> tuple[Parts, Seq2SeqSpec]:
    """Make a model and a drafter of random weights."""
    config = Seq2SeqSpec(
        vocab_size=_VOCAB_SIZE,
        hidden_size=48,
        encoder_layers=2,
        decoder_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        tie_word_embeddings=False,
        logits_bias=True,
    )
    drafter = DrafterSpec.for_target(config, block=_BLOCK, train_block=_BLOCK)
    here = Path("self-check")
    model = Part(here, config, _random(model_layout(config), dice))
    return Parts(model, Part(here, drafter, _random(drafter_layout(drafter), dice))), config


def _random(layout: Mapping[str, Expected], dice: np.random.Generator) -> dict[str, Weight]:
    """Draw weights that do not generate one repeated token."""
    weights = {}
    for name, expected in layout.items():
        numbers = dice.standard_normal(expected.shape, np.float32)
        if len(expected.shape) == 1:
            numbers = 0.05 * numbers + (1 if name.endswith("norm.weight") else 0)
        else:
            numbers *= (1.0 if "tokens" in name else 2.0) / np.sqrt(expected.shape[-1])
        weights[name] = Weight("float32", numbers.astype(np.float32))
    return weights


def _count_differing(backend: Backend, sources: list[list[int]]) -> int:
    requests = [Request(source=source, max_new_tokens=_TOKENS) for source in sources]
    drafted = decode(backend, requests, DecodeConfig(mode="tandem", draft_tokens=_BLOCK))
    plain = decode(backend, requests, DecodeConfig())
    return sum(ours != other for ours, other in zip(drafted, plain, strict=True))


OPTIONAL = {
    "datasets": ("hub", "corpora from the Hugging Face Hub"),
    "matplotlib": ("plot", "pictures"),
    "tensorboard": ("plot", "train.tensorboard"),
    "ctranslate2": ("peers", "export --to ctranslate2, and a peer in bench decode"),
    "gymnasium": ("examples", "examples/memory-rl"),
    "scikit-learn": ("examples", "examples/images"),
}
"""Optional packages: the extra that installs each, and its purpose."""
STEP = 16
"""Tokens by which a cache of the native core grows."""


def examine(model: str | Path | None = None) -> dict[str, Any]:
    """Return the report as JSON values; `problems` lists the faults, a sentence each.

    Args:
        model: A model folder or Hub id, to report also how `load` runs it.
    """
    problems: list[str] = []
    report: dict[str, Any] = {
        "versions": versions(),
        "machine": machine(),
        "gpus": gpu_names(),
        "environment": {name: os.environ.get(name) for name in (VARIABLE, native.INSTRUCTION_SET)},
        "native": _examine_native(problems),
        "load": _examine_load(problems),
        "optional": {name: _version(name) for name in OPTIONAL},
    }
    if model is not None:
        report["model"] = _examine_model(model, problems)
    return {**report, "problems": list(dict.fromkeys(problems))}


def _examine_native(problems: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {"installed": native.is_installed()}
    if (fault := native.fault()) is not None:
        if native.is_damaged():
            problems.append(f"outrider-native {fault}")
        return {**report, "reason": fault}
    try:
        report["instruction_sets"] = native.instruction_sets()
        report["instruction_set"] = native.choose_instruction_set()
        check = check_native()
    except OutriderError as error:
        problems.append(str(error))
        return {**report, "reason": str(error)}
    if check.fault is not None:
        problems.append(f"the native core computes wrong results on this machine: {check.fault}")
    return {**report, "check": {**asdict(check), "fault": check.fault}}


def _examine_load(problems: list[str]) -> dict[str, Any]:
    """Return the backend that `load` chooses by default."""
    device = choose_device("auto")
    try:
        choice = choose_backend(None, None, device)
        if choice.native:
            native.choose_instruction_set()
    except OutriderError as error:
        problems.append(str(error))
        return {"reason": str(error)}
    name = "native" if choice.native else "torch"
    reason = None if choice.native else _why_torch(device)
    return {"backend": name, "dtype": choice.dtype, "device": device, "reason": reason}


def _why_torch(device: str) -> str:
    if os.environ.get(VARIABLE) == "torch":
        return f"{VARIABLE} requires it"
    if device != "cpu":
        return "the native core computes on a CPU only"
    return f"the native core {'does not load' if native.is_damaged() else 'is not installed'}"


def _examine_model(name: str | Path, problems: list[str]) -> dict[str, Any]:
    try:
        folder = model_folder(name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            loaded = load(folder)
    except OutriderError as error:
        problems.append(str(error))
        return {"name": str(name), "reason": str(error)}
    fallbacks = [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]
    parts = {"drafter": DRAFTER, "ctc": CTC}
    return {
        "name": str(name),
        "kind": "encoder-decoder" if isinstance(loaded, Translator) else "language model",
        "weights": _measure(read_model(folder).weights, model_files(folder)),
        **{part: _measure_part(folder / path) for part, path in parts.items()},
        **_describe_backend(loaded.backend, fallbacks, reads=isinstance(loaded, Translator)),
    }


def _describe_backend(backend: Any, fallbacks: list[str], *, reads: bool) -> dict[str, Any]:
    """Describe the backend and, for PyTorch, the reason; `lacking` is unsupported by the core."""
    if isinstance(backend, NativeBackend):
        return {
            "backend": "native",
            "dtype": backend.dtype,
            "instruction_set": backend.instruction_set,
            "memory": _measure_memory(backend, reads),
        }
    sides = (backend.drafter, backend.ctc_decoder)
    side_specs = [None if side is None else side.config for side in sides]
    return {
        "backend": "torch",
        "dtype": str(backend.model.dtype).removeprefix("torch."),
        "device": str(backend.device),
        "reason": fallbacks[0] if fallbacks else _why_torch(backend.device.type),
        "lacking": missing(backend.config, *side_specs),
    }


def _measure_memory(backend: NativeBackend, reads: bool) -> dict[str, Any]:
    """Return the memory of the model and of each token."""
    core = backend.core

    def tokens(**options: bool) -> dict[str, int]:
        def measure(source: int, target: int) -> int:
            return backend.encode([[0] * source], capacity=target, **options).nbytes

        source = STEP if reads else 0
        least = measure(source, STEP)
        return {
            "source": (measure(2 * source, STEP) - least) // STEP,
            "target": (measure(source, 2 * STEP) - least) // STEP,
        }

    return {
        "packed_bytes": core.bytes - core.embedding_bytes,
        "embedding_bytes": core.embedding_bytes,
        "mapped": core.mapped,
        "token_bytes": tokens(),
        "drafting_token_bytes": tokens(drafting=True) if backend.drafts else None,
    }


def _measure_part(folder: Path) -> dict[str, int] | None:
    """Return the size of a side decoder; None if there is none."""
    return _measure(read_weights(folder), weight_files(folder)) if folder.is_dir() else None


def _measure(weights: Mapping[str, Weight], files: Sequence[Path]) -> dict[str, int]:
    counted = [w for w in weights.values() if w.scale is not None or "float" in w.kind]
    return {
        "parameters": sum(prod(weight.shape) for weight in counted),
        "bytes": sum(path.stat().st_size for path in files),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
