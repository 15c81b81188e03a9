"""`outrider config`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from outrider.config import ExplainedKey
from outrider.errors import ConfigError, nearest


def config(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN.yaml [key=value]... | SECTION...", show_default=False),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="List every key with its type, default and meaning.")
    ] = False,
) -> None:
    """Print the config of a run with defaults and key=value overrides.

    With --explain, list all config keys, or those of the named sections.
    """
    if explain:
        for field in run_fields(words or []):
            _print_field(field)
    elif words:
        _print_resolved(*words)
    else:
        raise ConfigError("config", "needs a file: outrider config RUN.yaml, or --explain")


def _print_resolved(path: str, *overrides: str) -> None:
    from outrider.config import as_yaml, load_config
    from outrider.formats.explain import TYPES
    from outrider.formats.spec import check_keys
    from outrider.run_config import RunConfig
    from outrider.torch.training.check import check_settings
    from outrider.torch.training.kinds import kind_of

    run = load_config(RunConfig, path, overrides)
    check_keys(TYPES[run.model.type], run.model.values, prefix="model.")
    check_settings(run)
    needs_folders = (
        run.model.has_target or run.model.start is not None or "encoder" in run.model.values
    )
    if not needs_folders:
        kind_of(run).check()
    typer.echo(as_yaml(run), nl=False)


def run_fields(sections: Sequence[str] = ()) -> list[ExplainedKey]:
    """Return all keys of a run config, or those of some sections."""
    from outrider.config import explain
    from outrider.formats.explain import explain_models
    from outrider.run_config import RunConfig

    fields = list(explain(RunConfig))
    after_type = [field.key for field in fields].index("model.type") + 1
    fields[after_type:after_type] = explain_models("model.")
    for section in sections:
        if not any(_inside(field, section) for field in fields):
            hint = nearest(section, [field.key for field in fields])
            raise ConfigError(section, f"no such key{hint}; outrider config --explain lists all")
    return [f for f in fields if not sections or any(_inside(f, section) for section in sections)]


def _inside(field: ExplainedKey, section: str) -> bool:
    return field.key == section or field.key.startswith((f"{section}.", f"{section}[]."))


def _print_field(field: ExplainedKey) -> None:
    default = {"": "", "required": " (required)"}.get(field.default, f" (default {field.default})")
    typer.echo(f"{typer.style(field.key, bold=True)}: {field.type}{default}")
    if field.text:
        typer.echo(f"    {field.text}")
