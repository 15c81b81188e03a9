"""What a run config says of its data: what `outrider prepare` reads, and how batches change it."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from outrider.config import Config
from outrider.errors import ConfigError

__all__ = [
    "AugmentConfig",
    "CleanConfig",
    "CompletionConfig",
    "CorpusConfig",
    "MaskConfig",
    "PrepareConfig",
    "SourceTokenizerConfig",
    "Task",
    "TokenizerConfig",
]

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
    Sources without targets are for `outrider distill`, which lets a model write them."""
    pairs: Files = ()
    """Files that hold both sides: .tsv, .jsonl (each also .gz) or .parquet. With `*` in its name,
    all that match, in the order of their names: `train-*.parquet`."""
    hub: str | None = None
    """A dataset of the Hugging Face Hub, streamed (needs the extra `hub`)."""
    hub_config: str | None = None
    """The configuration of that dataset, where it has several."""
    split: str = "train"
    """The split of the Hub dataset."""
    source_column: int | str | None = None
    """Column of the source: a name (`translation.en` looks inside) or, in .tsv, a number from 0."""
    target_column: int | str | None = None
    """Column of the target, or of a language model's text."""
    tag: str | None = Field(default=None, min_length=1)
    """Stands before every source, and tells a model what kind of text follows: `<bt>` for one that
    was translated back, say."""

    @property
    def sources_alone(self) -> bool:
        """Whether there are texts to translate and no translations."""
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
    """Characters it is trained on, spread evenly; unigram takes 25 bytes of memory for each."""
    folder: str | None = None
    """Use the tokenizer of this folder or Hub name (ours or Marian's) instead of training one; with
    `model.start`, it is that model's."""
    new_tokens: tuple[str, ...] = ()
    """Tokens that an existing tokenizer gets in addition; `model.start` gets a row for each."""

    @model_validator(mode="after")
    def _no_idle_settings(self) -> Self:
        fields = type(self).model_fields  # a default written out, as in a saved config, is no wish
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
    """The tokenizer that a pretrained encoder was trained with; it reads the source side."""

    folder: str
    """Folder or Hub name of the encoder; its `tokenizer.json` is taken."""


class CleanConfig(Config):
    """What is dropped. Every drop is counted with its reason and an example."""

    on_bad_text: Literal["error", "drop"] = "error"
    """Text that is not UTF-8 or holds a NUL byte: stop and name the line, or drop and count it."""
    min_characters: int = Field(default=1, ge=1)
    """Shortest side kept."""
    max_characters: int = Field(default=5_000, ge=1)
    """Longest side kept; longer lines are never held in memory."""
    max_tokens: int = Field(default=512, ge=1)
    """Longest side kept, in tokens."""
    max_ratio: float | None = Field(default=9.0, ge=1.0)
    """Most characters of the longer side for one of the shorter; null keeps all."""
    drop_duplicates: bool = True
    """Keep only the first of equal pairs."""
    duplicate_megabytes: int = Field(default=128, ge=1, le=1 << 20)
    """Memory for finding duplicates: about 100,000 pairs a megabyte are remembered."""
    drop_equal: bool = False
    """Drop pairs whose two sides are the same text."""
    max_repeats: int | None = Field(default=None, ge=1)
    """Most times that a side may say the same few words (or letters, where words are not spaced)
    in a row, unless the other does as well: what a model does that lost its way."""
    source_language: str | None = None
    """Code such as `zh`: drop pairs whose source is clearly in another language. Needs the extra
    `language`."""
    target_language: str | None = None
    """The same for targets."""


class PrepareConfig(Config):
    """From text files to a prepared folder."""

    folder: str
    """Where the prepared shards go; appears only when complete."""
    train: CorpusConfig | None = None
    """What the model learns from; null where `folder` is prepared already, by `outrider distill`
    say."""
    more: tuple[CorpusConfig, ...] = ()
    """Further corpora that it learns from, read after `train`."""
    valid: CorpusConfig | None = None
    """What it is checked on while it learns."""
    valid_rows: int | None = Field(default=None, ge=1)
    """Without `valid`: hold out this many pairs, spread evenly over the training corpus."""
    valid_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Without `valid`: hold out this share of the pairs; of a language model's text, its end."""
    root: str | None = None
    """Folder that relative corpus paths start from; `$NAME` is read from the environment."""
    sequence_length: int = Field(default=256, ge=2)
    """Positions a language model sees at once; its text is cut into blocks of this length."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes token ids."""
    source_tokenizer: SourceTokenizerConfig | None = None
    """How sources become token ids, where `model.encoder` is pretrained; `tokenizer` then only
    knows the target side."""
    clean: CleanConfig = CleanConfig()
    """What is left out."""
    shard_rows: int = Field(default=100_000, ge=1)
    """Rows of one Parquet file."""

    @model_validator(mode="after")
    def _nothing_idle_without_corpus(self) -> Self:
        if self.train is None:
            fields = type(self).model_fields  # a default written out, as in a saved config, is none
            for name in sorted(fields.keys() - {"folder", "root"}):
                if getattr(self, name) != fields[name].default:
                    raise ConfigError(
                        f"data.{name}",
                        "has no effect without data.train: data.folder is taken as it was prepared",
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
    def learnt(self) -> dict[str, CorpusConfig]:
        """The corpora that a model learns from, by key."""
        further = {f"data.more.{number}": corpus for number, corpus in enumerate(self.more)}
        return {} if self.train is None else {"data.train": self.train, **further}

    @property
    def corpora(self) -> dict[str, CorpusConfig]:
        """All corpora, by key."""
        return self.learnt | ({} if self.valid is None else {"data.valid": self.valid})

    def path(self, name: str) -> Path:
        """Where a corpus file named in this config lies."""
        path = Path(name).expanduser()
        return path if self.root is None else _expand("data.root", self.root) / path


def _expand(key: str, name: str) -> Path:
    expanded = os.path.expandvars(name)
    if "$" in expanded:
        variable = expanded[expanded.index("$") :].split("/")[0]
        raise ConfigError(key, f"got {name!r}, but {variable} is not set in the environment")
    return Path(expanded).expanduser()


class AugmentConfig(Config):
    """Share of the training pairs that are changed, each in one way."""

    final_mark: float = Field(default=0.0, ge=0, le=1)
    """The final mark is missing on both sides."""
    casing: float = Field(default=0.0, ge=0, le=1)
    """Half of these are in capitals on both sides, half have a source without any; nothing happens
    to a source whose script knows no capitals."""
    typos: float = Field(default=0.0, ge=0, le=1)
    """Two letters of the source have changed places, or one is missing or twice there."""
    joined: float = Field(default=0.0, ge=0, le=1)
    """Another pair follows on the same line."""
    placeholders: float = Field(default=0.0, ge=0, le=1)
    """A placeholder stands before or after both sides, or tags around them."""

    def kinds(self) -> list[float]:
        """List the shares, in order."""
        return [float(getattr(self, name)) for name in type(self).model_fields]


class CompletionConfig(Config):
    """Which parts of a text a language_model learns to write."""

    after: str = Field(min_length=1)
    """Text before a completion, such as `Answer:`."""
    until: str = Field(default="\n", min_length=1)
    """Text with which a completion ends; it is learnt too."""


class MaskConfig(Config):
    """How much of a text a masked_lm has to guess, and what it is shown there."""

    share: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens of a row that are asked for."""
    hidden: float = Field(default=0.8, ge=0, le=1)
    """Of these, how many are shown as the mask."""
    random: float = Field(default=0.1, ge=0, le=1)
    """Of these, how many are shown as any other token; the rest are shown as they are."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.hidden + self.random > 1:
            total = self.hidden + self.random
            raise ValueError(f"hidden and random add up to {total:g}; lower them to 1 or less")
        return self
