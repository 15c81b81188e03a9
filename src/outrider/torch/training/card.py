"""The model card: what a model is, its data, training and scores."""

import re
from pathlib import Path
from typing import Any

import yaml

from outrider.files import write_text
from outrider.run_config import RunConfig
from outrider.runtime.provenance import show_score

UNSCORED = "Not evaluated on a test set."

_CARD = """---
library_name: outrider
pipeline_tag: {task}
---

# {name}

{what} with {parameters:,} parameters, trained with Outrider.

{example}

## Data

{data}

## Training

{training}

## Scores

{scores}

## Reproduce

`run.yaml` beside this file is the resolved configuration; `provenance.json` holds the versions, the
seed and the checksums of the data.
"""

_LOADED = """```python
import outrider

model = outrider.load("path/to/{{name}}")
{call}
```"""


def loaded(call: str) -> str:
    """Return an example that loads a model, whose name replaces `{name}`, and calls it."""
    return _LOADED.format(call=call)


def write_card(
    folder: Path,
    config: RunConfig,
    *,
    pipeline: str,
    description: str,
    example: str,
    parameters: int,
    provenance: dict[str, Any],
    scores: dict[str, Any] | None = None,
) -> None:
    """Write `README.md` into a model folder."""
    card = _CARD.format(
        task=pipeline,
        name=config.name,
        what=description,
        parameters=parameters,
        example=example.format(name=config.name),
        data=_data(config, provenance),
        training=_training(config, provenance),
        scores=_scores(scores),
    )
    write_text(folder / "README.md", card)


def add_side_decoder_section(
    folder: Path,
    config: RunConfig,
    *,
    title: str,
    about: str,
    parameters: int,
    provenance: dict[str, Any],
    scores: dict[str, Any] | None = None,
) -> None:
    """Add the section of a drafter or a parallel decoder to the card of its target."""
    parts = [f"## {title}", about.format(parameters=parameters)]
    if config.model.values.get("joint"):
        parts.append(
            "It was trained jointly with the model; sections above describe the model before."
        )
    parts += [_text_origin(provenance), _data(config, provenance), _training(config, provenance)]
    validation = provenance["validation"]
    if validation:
        measured = {k: v for k, v in validation.items() if k not in ("event", "step")}
        parts.append(_scores({f"validation {name}": value for name, value in measured.items()}))
    if scores:
        parts.append(_scores(scores))
    path = folder / "README.md"
    card = path.read_text(encoding="utf-8") if path.is_file() else f"# {config.name}\n"
    # Remove an older section of this kind, up to the next heading or the end.
    card = re.sub(rf"\n## {title}\n.*?(?=\n## |\Z)", "", card, flags=re.DOTALL)
    write_text(path, f"{card.rstrip()}\n\n" + "\n\n".join(parts) + "\n")


def _text_origin(provenance: dict[str, Any]) -> str:
    origin = provenance["distilled"]
    if origin is None:
        return "It was trained on original text."
    same = origin["weights"] == provenance["target"]["weights"]
    text = "the model's own output" if same else f"the output of `{origin['model']}`"
    return f"It was trained on {text} (`outrider distill`, {origin['decode']['strategy']})."


def _data(config: RunConfig, provenance: dict[str, Any]) -> str:
    rows = provenance["corpus"]["rows"]
    counts = ", ".join(f"{count:,} {split}" for split, count in rows.items())
    files = ", ".join(f"`{Path(file['name']).name}`" for file in provenance["corpus"]["files"])
    lines = [f"Rows after cleaning: {counts}. Files: {files or 'none'}."]
    if config.attribution:
        lines.append(config.attribution)
    if config.model.start is not None:
        name = Path(config.model.start).name
        lines.append(f"Training started from `{name}`, whose licence applies to the weights.")
    return "\n\n".join(lines)


def _training(config: RunConfig, provenance: dict[str, Any]) -> str:
    training = provenance["training"]
    recipe = yaml.safe_dump(
        {
            "model": config.model.model_dump(mode="json"),
            "train": config.train.model_dump(mode="json", exclude_unset=True),
        },
        sort_keys=False,
    )
    summary = (
        f"{training['steps']:,} updates, {training['tokens']:,} target tokens, "
        f"{training['seconds'] / 60:.0f} minutes; the weights are the mean of "
        f"{len(training['averaged'])} checkpoint(s), trained in {training['precision']}. "
        f"Seed {config.seed}."
    )
    return f"{summary}\n\n```yaml\n{recipe}```"


def _scores(scores: dict[str, Any] | None) -> str:
    if not scores:
        return UNSCORED
    cells = {name: show_score(value).replace("|", r"\|") for name, value in scores.items()}
    rows = [f"| {name} | {value} |" for name, value in cells.items()]
    return "\n".join(["| measure | value |", "|---|---|", *rows])
