"""`outrider doctor`."""

import json as _json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

Line = tuple[str, str]


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Folder or Hub id of a model.", show_default=False),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file; - for stdout.")
    ] = None,
) -> None:
    """Show what is installed, the default backend, and problems; with a model, how it runs.

    Exits with 2 if there is a problem. A missing optional package is none.
    """
    from outrider.runtime.doctor import examine
    from outrider.runtime.provenance import write_result

    found = examine(model)
    if json == Path("-"):
        typer.echo(_json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _print(found)
        if json is not None:
            write_result(json, found)
    for problem in found["problems"]:
        typer.echo(f"outrider: {problem}", err=True)
    if found["problems"]:
        raise typer.Exit(2)


def _print(found: dict[str, Any]) -> None:
    lines = [*_machine(found), *_native(found), *_optional(found)]
    if "model" in found:
        lines += [("", ""), *_model(found["model"])]
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        typer.echo(f"{name:<{width}}  {text}".rstrip())


def _machine(found: dict[str, Any]) -> Iterator[Line]:
    versions, machine = found["versions"], found["machine"]
    yield "outrider", f"{versions['outrider']}, Python {versions['python']}, {machine['system']}"
    memory = f", {machine['memory_gib']} GiB of memory" if machine["memory_gib"] else ""
    yield "processor", f"{machine['processor']}: {machine['cores']} cores{memory}"
    yield "threads", f"{machine['threads']}"
    gpus = ", ".join(found["gpus"]) or "no GPU"
    missing = "not installed: pip install 'outrider[train]' for training and unsupported models"
    yield "torch", f"{versions['torch']}, {gpus}" if "torch" in versions else missing


def _native(found: dict[str, Any]) -> Iterator[Line]:
    core = found["native"]
    if "check" in core:
        name = found["versions"].get("outrider-native", "not installed by pip")
        others = ", ".join(core["instruction_sets"])
        yield "native core", f"{name}, computes with {core['instruction_set']} (of {others})"
        yield "self-check", _check(core["check"])
    else:
        yield "native core", core["reason"]
    yield "load", _engine(found["load"])
    for variable, value in found["environment"].items():
        unused = variable == "OUTRIDER_ISA" and not core["installed"]
        text = f"{value} (no effect without the native core)" if unused else value
        yield variable, text if value else "not set"


def _check(check: dict[str, Any]) -> str:
    if check["fault"]:
        return f"failed: {check['fault']}"
    return (
        f"ok ({check['seconds']:.1f} s): float32 within {check['float32_error']:.0e} of numpy, "
        "int8 tandem equals int8 greedy"
    )


def _engine(choice: dict[str, Any]) -> str:
    if "backend" not in choice:
        return f"fails: {choice['reason']}"
    text = f"backend {choice['backend']} in {choice['dtype']}"
    return f"{text}: {choice['reason']}" if choice.get("reason") else text


def _optional(found: dict[str, Any]) -> Iterator[Line]:
    from outrider.runtime.doctor import OPTIONAL

    for name, version in found["optional"].items():
        extra, purpose = OPTIONAL[name]
        yield name, version or f"not installed: pip install 'outrider[{extra}]' for {purpose}"


def _model(model: dict[str, Any]) -> Iterator[Line]:
    if "kind" not in model:
        yield "model", f"{model['name']} does not load: {model['reason']}"
        return
    yield "model", f"{model['name']}: {model['kind']}, {_size(model['weights'])}"
    yield "drafter", _size(model["drafter"])
    yield "ctc", _size(model["ctc"])
    if model["backend"] == "native":
        yield "load", f"{_engine(model)} with {model['instruction_set']}"
        yield from _memory(model["memory"])
        return
    yield "load", _engine(model)
    if model["lacking"]:
        yield "native core", f"does not compute {model['lacking']}"


def _memory(memory: dict[str, Any]) -> Iterator[Line]:
    packed, embeddings = memory["packed_bytes"] / 2**20, memory["embedding_bytes"] / 2**20
    shared = "mapped, shared by processes" if memory["mapped"] else "of this process alone"
    yield "memory", f"{packed:,.1f} MiB packed, {embeddings:,.1f} MiB of embeddings, {shared}"
    text = _tokens(memory["token_bytes"])
    if memory["drafting_token_bytes"]:
        text += f"; with drafting {_tokens(memory['drafting_token_bytes'])}"
    yield "a row", text


def _tokens(count: dict[str, int]) -> str:
    sides = [f"{count[side] / 2**10:,.1f} KiB a {side} token" for side in count if count[side]]
    return ", ".join(sides)


def _size(part: dict[str, int] | None) -> str:
    if part is None:
        return "none"
    return f"{part['parameters']:,} parameters, {part['bytes'] / 2**20:,.1f} MiB"
