"""The `data` section of a run config, and options that change batches."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from outrider.config import Config
from outrider.errors import ConfigError

Task = Literal["translation", "language_model"]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str | Path) else value


Files = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class CorpusConfig(Config):
    """One corpus: line-aligned text files, files of pairs, or a dataset of the Hugging Face Hub."""

    source: Files = ()
    """Text files of the source side, one sentence a line, plain or .gz."""
    target: Files = ()
    """Text files of the target side, line by line the translation; all a language model reads.
    Sources without targets are for `outrider distill`, which generates them."""
    pairs: Files = ()
    """Files with both sides: .tsv, .jsonl (each also .gz) or .parquet. A name with `*` stands for
    all matching files in alphabetical order: `train-*.parquet`."""
    hub: str | None = None
    """A dataset of the Hugging Face Hub, streamed (needs the extra `hub`)."""
    hub_config: str | None = None
    """The configuration of that dataset, if it has several."""
    split: str = "train"
    """The split of the Hub dataset."""
    source_column: int | str | None = None
    """Column of the source: a name (`translation.en` is nested) or, in .tsv, a number from 0."""
    target_column: int | str | None = None
    """Column of the target, or of a language model's text."""
    tag: str | None = Field(default=None, min_length=1)
    """Prefix of every source that marks its kind, such as `<bt>` for back-translated text."""

    @property
    def sources_alone(self) -> bool:
        """Whether there are sources without targets."""
        return bool(self.source) and not self.target

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [bool(self.source or self.target), bool(self.pairs), self.hub is not None]
        if sum(kinds) != 1:
            raise ValueError("give either source and target files, or pairs, or hub")
        if self.source and self.target and len(self.source) != len(self.target):
            raise ValueError(
                f"source lists {len(self.source)} files and target {len(self.target)}; "
                "they are read side by side and must be as many"
            )
        return self


class TokenizerConfig(Config):
    """The tokenizer to train, shared by both sides, or an existing one to use."""

    kind: Literal["unigram", "bpe", "char"] = "unigram"
    """`unigram` (SentencePiece), `bpe` (byte level) or `char` (one token a character)."""
    vocab_size: int = Field(default=8000, ge=8)
    """Entries including the special ones; a small corpus may yield fewer."""
    coverage: float = Field(default=0.9995, gt=0.9, le=1.0)
    """Share of characters that get an entry of their own (unigram); rarer ones become bytes."""
    normalization: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode form of what is read; nfkc also folds e.g. full-width punctuation to ASCII."""
    sample: int = Field(default=20_000_000, ge=1)
    """Characters to train on, spread evenly; unigram needs 25 bytes of memory for each."""
    folder: str | None = None
    """Use the tokenizer of this folder or Hub name (Outrider's or Marian's) instead of training
    one; with `model.start`, that of the model."""
    new_tokens: tuple[str, ...] = ()
    """Tokens to add to an existing tokenizer; `model.start` gets a row for each."""

    @model_validator(mode="after")
    def _no_idle_settings(self) -> Self:
        fields = type(self).model_fields  # a default in a saved config counts as not set
        changed = {name for name in fields if getattr(self, name) != fields[name].default}
        others = ", ".join(sorted(changed - {"folder", "new_tokens"}))
        if self.folder is not None and others:
            raise ValueError(f"folder takes an existing tokenizer, so {others} has no effect")
        if self.folder is None and self.new_tokens:
            raise ValueError("new_tokens are for an existing tokenizer; name its folder as well")
        if "coverage" in changed and self.kind != "unigram":
            raise ValueError(f"coverage has no effect on kind: {self.kind}")
        return self


class SourceTokenizerConfig(Config):
    """The tokenizer of a pretrained encoder, for the source side."""

    folder: str
    """Folder or Hub name of the encoder; its `tokenizer.json` is used."""


class CleanConfig(Config):
    """Which rows are dropped. Drops are counted by reason, with an example of each."""

    on_bad_text: Literal["error", "drop"] = "error"
    """Text that is not UTF-8 or contains a NUL byte: stop with an error, or drop the line."""
    min_characters: int = Field(default=1, ge=1)
    """Shortest side kept."""
    max_characters: int = Field(default=5_000, ge=1)
    """Longest side kept; longer lines are not read into memory."""
    max_tokens: int = Field(default=512, ge=1)
    """Longest side kept, in tokens."""
    max_ratio: float | None = Field(default=9.0, ge=1.0)
    """Most characters of the longer side for one of the shorter; null keeps all."""
    drop_duplicates: bool = True
    """Keep only the first of equal pairs."""
    duplicate_megabytes: int = Field(default=128, ge=1, le=1 << 20)
    """Memory for finding duplicates: about 100,000 pairs per megabyte."""
    drop_equal: bool = False
    """Drop pairs whose two sides are the same text."""
    max_repeats: int | None = Field(default=None, ge=1)
    """Most repetitions of the same few words (or letters, in scripts without spaces) in a row on
    one side only: typical of degenerate model output."""
    source_language: str | None = None
    """Code such as `zh`: drop pairs whose source is clearly in another language. Needs the extra
    `language`."""
    target_language: str | None = None
    """The same for targets."""


class PrepareConfig(Config):
    """From text files to a prepared folder."""

    folder: str
    """Folder of the prepared shards; it is created when complete."""
    train: CorpusConfig | None = None
    """Training corpus; null if `folder` is already prepared, for example by `outrider distill`."""
    more: tuple[CorpusConfig, ...] = ()
    """Further training corpora, read after `train`."""
    valid: CorpusConfig | None = None
    """Validation corpus."""
    valid_rows: int | None = Field(default=None, ge=1)
    """Without `valid`: hold out this many pairs, spread evenly over the training corpus."""
    valid_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Without `valid`: hold out this share of the pairs; of a language model's text, its end."""
    root: str | None = None
    """Base folder of relative corpus paths; `$NAME` is read from the environment."""
    sequence_length: int = Field(default=256, ge=2)
    """Context length of a language model; its text is cut into blocks of this length."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Tokenizer of both sides."""
    source_tokenizer: SourceTokenizerConfig | None = None
    """Tokenizer of the sources for a pretrained `model.encoder`; `tokenizer` is then used for
    targets only."""
    clean: CleanConfig = CleanConfig()
    """Filters."""
    shard_rows: int = Field(default=100_000, ge=1)
    """Rows of one Parquet file."""

    @model_validator(mode="after")
    def _nothing_idle_without_corpus(self) -> Self:
        if self.train is None:
            fields = type(self).model_fields  # a default in a saved config counts as not set
            for name in sorted(fields.keys() - {"folder", "root"}):
                if getattr(self, name) != fields[name].default:
                    raise ConfigError(
                        f"data.{name}",
                        "has no effect without data.train: data.folder is already prepared",
                    )
        return self

    @model_validator(mode="after")
    def _one_valid(self) -> Self:
        given = [
            k for k in ("valid", "valid_rows", "valid_fraction") if getattr(self, k) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"give only one of {' and '.join(given)}")
        return self

    @property
    def training(self) -> dict[str, CorpusConfig]:
        """The training corpora, by key."""
        further = {f"data.more.{number}": corpus for number, corpus in enumerate(self.more)}
        return {} if self.train is None else {"data.train": self.train, **further}

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """All corpora, by key."""
        return self.training | ({} if self.valid is None else {"data.valid": self.valid})

    def path(self, name: str) -> Path:
        """Return the path of a corpus file of this config."""
        path = Path(name).expanduser()
        return path if self.root is None else _expand("data.root", self.root) / path


def _expand(key: str, name: str) -> Path:
    expanded = os.path.expandvars(name)
    if "$" in expanded:
        variable = expanded[expanded.index("$") :].split("/")[0]
        raise ConfigError(key, f"got {name!r}, but {variable} is not set in the environment")
    return Path(expanded).expanduser()


class AugmentConfig(Config):
    """Shares of the training pairs to change; a pair is changed in at most one way."""

    final_mark: float = Field(default=0.0, ge=0, le=1)
    """Remove the final punctuation mark on both sides."""
    casing: float = Field(default=0.0, ge=0, le=1)
    """Half of these are uppercase on both sides, half have a lowercase source. No effect on scripts
    without letter case."""
    typos: float = Field(default=0.0, ge=0, le=1)
    """Swap two adjacent letters of the source, or delete or double one."""
    joined: float = Field(default=0.0, ge=0, le=1)
    """Append another pair to the line."""
    placeholders: float = Field(default=0.0, ge=0, le=1)
    """Put a placeholder before or after both sides, or tags around them."""

    def kinds(self) -> list[float]:
        """List the shares, in order."""
        return [float(getattr(self, name)) for name in type(self).model_fields]


class CompletionConfig(Config):
    """Parts of a text that contribute to the loss of a language_model."""

    after: str = Field(min_length=1)
    """Text before a completion, such as `Answer:`."""
    until: str = Field(default="\n", min_length=1)
    """Text at the end of a completion; it contributes to the loss."""


class MaskConfig(Config):
    """Masking of a masked_lm."""

    share: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens of a row to predict."""
    hidden: float = Field(default=0.8, ge=0, le=1)
    """Share of these that are replaced by the mask token."""
    random: float = Field(default=0.1, ge=0, le=1)
    """Share of these that are replaced by a random token; the rest are unchanged."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.hidden + self.random > 1:
            total = self.hidden + self.random
            raise ValueError(f"hidden and random add up to {total:g}; lower them to 1 or less")
        return self
