"""`outrider export`."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.errors import ConfigError

TARGETS = ("marian", "ctranslate2", "outrider", "native")


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or Hub id of a model.")],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="New folder to write.", show_default=False),
    ] = None,
    to: Annotated[
        str, typer.Option("--to", help="marian, ctranslate2, outrider for a copy, or native.")
    ] = "marian",
    dtype: Annotated[
        str | None, typer.Option(help="With --to outrider: float32, bfloat16, float16 or int8.")
    ] = None,
    int4: Annotated[
        str | None,
        typer.Option(help="With --dtype int8: embeddings, feedforward, or both with a comma."),
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(help="With --to ctranslate2: float32 or int8.")
    ] = None,
) -> None:
    """Convert a model for another engine, or write a smaller copy for this one.

    With --to native the packed weights are written beside the model, so that later starts need not
    pack them; FOLDER is not given.
    """
    if to not in TARGETS:
        raise ConfigError(
            "--to", f"got {to!r}, expected {', '.join(TARGETS[:-1])} or {TARGETS[-1]}"
        )
    for name, value, target in (
        ("--dtype", dtype, "outrider"),
        ("--int4", int4, "outrider"),
        ("--quantization", quantization, "ctranslate2"),
    ):
        if value is not None and to != target:
            raise ConfigError(name, f"has no effect with --to {to}; leave it out")
    if to == "native":
        if folder is not None:
            message = "has no effect with --to native, which writes beside the model; leave it out"
            raise ConfigError("FOLDER", message)
        from outrider.runtime.backend import export_native

        typer.echo(f"wrote {export_native(model)}")
        return
    if folder is None:
        raise ConfigError("FOLDER", f"is missing; name the new folder to write with --to {to}")
    typer.echo(f"wrote {_export(model, folder, to, dtype, int4, quantization)}")


def _export(
    model: str,
    folder: Path,
    to: str,
    dtype: str | None,
    int4: str | None,
    quantization: str | None,
) -> Path:
    from outrider.torch.export import export_copy, export_ctranslate2, export_marian

    if to == "outrider":
        parts = int4.split(",") if int4 else ()
        return export_copy(model, folder, dtype=dtype or "float32", int4=parts)
    if to == "ctranslate2":
        return export_ctranslate2(model, folder, quantization=quantization or "float32")
    return export_marian(model, folder)
