"""Translation models: an encoder-decoder, trained with teacher forcing on pairs.

    loss = sum_t -log p(y_t | y_<t, x)

With `train.teacher`, word-level distillation (Kim and Rush, 2016): q is the teacher on the same
text, and w its share.

    loss = sum_t (1 - w) (-log p(y_t | y_<t, x)) + w sum_v q(v | y_<t, x) (-log p(v | y_<t, x))
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.config import config_key
from outrider.data.config import Task
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, DataError
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.text.tokenizer import Tokenizer, load_tokenizer
from outrider.text.tokenizer.pair import PairTokenizer
from outrider.text.tokenizer.vocabulary import check_same_tokenizer
from outrider.torch.models import Seq2Seq, Seq2SeqConfig, load_config, load_model
from outrider.torch.models.folder import load_encoder, read_encoder
from outrider.torch.models.pretrained import longest_row
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.batches import count_tokens
from outrider.torch.training.card import loaded
from outrider.torch.training.kinds.base import OwnFolderKind
from outrider.torch.training.log import Log
from outrider.torch.training.objective import Inputs, Objective, add_penalty
from outrider.torch.training.start import NEVER, check_template, start_folder


class TranslationKind(OwnFolderKind[Seq2Seq]):
    task: Task = "translation"
    metric = "bleu"
    decodes = True
    default_positions = Seq2SeqConfig.max_positions
    config_class = Seq2SeqConfig
    model_class = Seq2Seq
    given: ClassVar = {**OwnFolderKind.given, "decoder_start_token_id": "pad_id"}
    pipeline = "translation"
    description = "An encoder-decoder Transformer"
    example = loaded('print(model.translate(["A sentence to translate."]))')
    teacher: Seq2Seq | None = None

    def check_config(self, built: Seq2SeqConfig) -> None:
        config = self.config
        if config.model.start is not None:
            check_template(start_folder(config), built)
        if built.encoder is None:
            super().check_config(built)
        elif config.data.train is not None:
            if config.data.source_tokenizer is None and config.data.tokenizer.folder is None:
                name = config.model.values["encoder"]["pretrained"]
                message = "is required: the encoder needs tokens of its own tokenizer"
                raise ConfigError("data.source_tokenizer", f"{message}; use {{folder: {name}}}")
            _check_length(config.data.clean.max_tokens, built.encoder)
        if config.train.teacher is not None:
            _check_teacher(config.train.teacher, built)

    def longest_row(self, data: Mapping[str, Any]) -> tuple[str, int]:
        return "clean.max_tokens", int(data["clean"]["max_tokens"]) + 1

    def model_values(self, longest: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
        """Set `encoder` to the encoder's own config, without its path."""
        values, folder = self.config.model.values, self._encoder_folder()
        if folder is None:
            return values
        section = dict(values["encoder"])
        del section["pretrained"]
        for key in section.keys() & {"config", "end"}:
            message = "comes from the pretrained encoder; leave it out"
            raise ConfigError(f"model.encoder.{key}", message)
        # Only the encoder's tokenizer defines its end token.
        end = tokenizer.source.end_id if isinstance(tokenizer, PairTokenizer) else 0
        config = read_encoder(folder)
        encoder = {"freeze": True, "layer": -1, **section, "config": config, "end": end}
        return {**values, "encoder": encoder}

    def _encoder_folder(self) -> Path | None:
        """Return the folder of the run's pretrained encoder, or None."""
        section = self.config.model.values.get("encoder")
        if section is None:
            return None
        if not isinstance(section, Mapping) or not isinstance(section.get("pretrained"), str):
            message = (
                f"got {section!r}, expected {{pretrained: FOLDER}}, optionally freeze and layer"
            )
            raise ConfigError("model.encoder", message)
        return model_folder(section["pretrained"])

    def _build(self, prepared: Prepared) -> Seq2Seq:
        model = super()._build(prepared)
        _check_encoder_data(model.config, prepared)
        if self.config.model.start is not None:
            return model
        folder = self._encoder_folder()
        if model.pretrained is not None and folder is not None:
            load_encoder(model.pretrained, folder)
        if model.router is not None:
            count_V = count_tokens(prepared, "source_ids")
            count_V[prepared.tokenizer.eos_id] += prepared.manifest.splits["train"].rows
            model.router.set_counts(torch.from_numpy(count_V))
        return model

    def load_others(self, model: Seq2Seq, prepared: Prepared, device: torch.device) -> None:
        """Load `train.teacher`, which must have the data's vocabulary."""
        if self.config.train.teacher is None:
            return
        folder = _teacher_folder(self.config.train.teacher)
        tokenizer = load_tokenizer(folder)
        check_same_tokenizer(prepared.tokenizer, tokenizer, data=prepared.folder, model=folder)
        teacher = load_model(folder)
        assert isinstance(teacher, Seq2Seq)
        if teacher.logits_bias is not None:
            teacher.logits_bias.data.clamp_(min=NEVER)
        self.teacher = teacher.to(device)

    def row_options(self, model: Seq2Seq, prepared: Prepared, *, train: bool) -> dict[str, Any]:
        return {
            **super().row_options(model, prepared, train=train),
            **({"augment": self.config.train.augment} if train else {}),
            "source_end": model.config.source_end,
            "right_to_left": model.config.right_to_left,
        }

    def training_objective(self) -> Objective:
        if self.teacher is None:
            return self.objective()
        return WordLevelObjective(self.teacher, share=self.config.train.teacher_share)

    def provenance(self, prepared: Prepared, log: Log) -> dict[str, Any]:
        folder = self._encoder_folder()
        if folder is None:
            return {}
        name = self.config.model.values["encoder"]["pretrained"]
        return {"encoder": {"pretrained": name, "weights": weights_of(folder)}}


class WordLevelObjective(Objective):
    """Predicts `labels` and the probabilities of a teacher with the same vocabulary.

    Args:
        teacher: The model to learn from; it is frozen.
        share: Weight of its probabilities; the labels have the rest.
    """

    def __init__(self, teacher: Seq2Seq, *, share: float) -> None:
        self.teacher, self.share = teacher.eval().requires_grad_(False), share

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        labels_BT = inputs["labels"]
        counted_BT = labels_BT != IGNORED
        model_inputs = {
            "input_ids": inputs["input_ids"],
            "attention_mask": inputs["attention_mask"],
            "decoder_input_ids": self.teacher.shift_right(labels_BT),
        }
        logits_NV = model(**model_inputs).logits[counted_BT].float()
        with torch.no_grad():
            target_NV = self.teacher(**model_inputs).logits[counted_BT].float().softmax(-1)
            target_NV *= self.share
            rest, vocab_size = 1 - self.share, target_NV.shape[1]
            label_N1 = labels_BT[counted_BT][:, None]
            weight_N1 = target_NV.new_full((), rest * (1 - smoothing)).expand(label_N1.shape)
            target_NV.scatter_add_(1, label_N1, weight_N1)
            target_NV += rest * smoothing / vocab_size
        summed = F.cross_entropy(logits_NV, target_NV, reduction="sum")
        return add_penalty(summed / divisor, model, self.count(inputs) / divisor)


def _check_encoder_data(config: Seq2SeqConfig, prepared: Prepared) -> None:
    """Check that the encoder can read the prepared sources."""
    tokenizer, encoder = prepared.tokenizer, config.encoder
    if encoder is None:
        if isinstance(tokenizer, PairTokenizer):
            message = "its sources are tokens of a pretrained encoder, but the run has none"
            raise DataError(f"{prepared.folder}: {message}; name it in model.encoder")
        return
    if not isinstance(tokenizer, PairTokenizer):
        message = "its sources are not tokens of the pretrained encoder"
        raise DataError(f"{prepared.folder}: {message}; prepare it with data.source_tokenizer")
    encoder_vocab = encoder["config"]["vocab_size"]
    if tokenizer.source.vocab_size > encoder_vocab:
        raise DataError(
            f"{prepared.folder}: the tokenizer of its sources has {tokenizer.source.vocab_size} "
            f"tokens, the pretrained encoder only {encoder_vocab}; use the encoder's own one"
        )
    _check_length(int(prepared.manifest.config["clean"]["max_tokens"]), encoder)


def _check_length(tokens: int, encoder: Mapping[str, Any]) -> None:
    longest = longest_row(encoder)
    if tokens >= longest:
        raise ConfigError(
            "data.clean.max_tokens",
            f"got {tokens}, but the pretrained encoder has {longest} positions, one of them for "
            f"the end token; use at most {longest - 1}",
        )


def _check_teacher(name: str, student: Seq2SeqConfig) -> None:
    """Require teacher and student to generate in the same direction."""
    folder = _teacher_folder(name)
    teacher = load_config(folder)
    assert isinstance(teacher, Seq2SeqConfig)
    if teacher.right_to_left != student.right_to_left:
        directions = ["left to right", "right to left"]
        message = (
            f"{folder} writes from {directions[teacher.right_to_left]} and the model from "
            f"{directions[student.right_to_left]}; set right_to_left to the same value, or train "
            "on its texts (outrider distill)"
        )
        raise ConfigError("train.teacher", message)


def _teacher_folder(name: str) -> Path:
    with config_key("train.teacher"):
        folder = model_folder(name)
        loaded = load_config(folder)
    if not isinstance(loaded, Seq2SeqConfig):
        message = f"{folder} is a language model; a teacher must be a seq2seq"
        raise ConfigError("train.teacher", message)
    return folder
