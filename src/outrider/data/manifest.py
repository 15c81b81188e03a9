"""The manifest of a prepared folder: its shards, settings, inputs and dropped rows."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from outrider.config import Config
from outrider.data.config import Task
from outrider.errors import DataError
from outrider.files import read_json, write_json

FORMAT = 1
NAME = "manifest.json"


class Shard(Config):
    """A Parquet file with token counts, or a text file."""

    name: str
    rows: int = Field(ge=0)
    sha256: str
    source_tokens: int = Field(default=0, ge=0)
    target_tokens: int = Field(default=0, ge=0)


class Dropped(Config):
    """Number of rows dropped for a reason, and the first of them."""

    count: int
    example: str


class Split(Config):
    """The shards of `train` or `valid`."""

    shards: tuple[Shard, ...]
    rows_read: int
    dropped: dict[str, Dropped]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens of both sides, without end tokens."""
        return sum(shard.source_tokens + shard.target_tokens for shard in self.shards)

    @property
    def target_tokens(self) -> int:
        """Target tokens, without end tokens."""
        return sum(shard.target_tokens for shard in self.shards)


class InputFile(Config):
    """A corpus file at the time of reading."""

    name: str
    bytes: int
    modified_ns: int
    sha256: str


class Manifest(Config):
    """Contents and origin of a prepared folder."""

    format: int = FORMAT
    task: Task
    config: dict[str, Any]
    """Settings of the preparation."""
    inputs: tuple[InputFile, ...]
    tokenizer: dict[str, Any]
    """Kind, size and special ids."""
    block_rows: int = Field(ge=1)
    """Rows of a Parquet row group; only the last one of a shard has fewer."""
    splits: dict[str, Split]
    origin: dict[str, Any] | None = None
    """Model and options that generated the targets; null for a corpus."""

    def write(self, folder: Path) -> None:
        """Write the manifest, last of all files: a folder without it is incomplete."""
        write_json(folder / NAME, self.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a prepared folder."""
    path = folder / NAME
    if not path.exists():
        raise DataError(f"{folder}: not a prepared folder (no {NAME}); run outrider prepare")
    values = read_json(path, error=DataError, fix="run outrider prepare --force")
    version = values.get("format")
    if version != FORMAT:
        raise DataError(
            f"{path}: has format {version}, this version reads {FORMAT}; "
            "run outrider prepare --force"
        )
    try:
        manifest = Manifest.model_validate(values)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise DataError(f"{path}: damaged at {place}; run outrider prepare --force") from error
    if "train" not in manifest.splits:
        raise DataError(f"{path}: damaged, it has no split train; run outrider prepare --force")
    return manifest
