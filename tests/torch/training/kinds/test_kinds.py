"""Every `model.type` has a kind; a memory selects the kind for segments."""

from pathlib import Path
from typing import Any, get_args

import pytest

from outrider.config import build_config
from outrider.run_config import ModelSection, RunConfig
from outrider.torch.training.kinds import KINDS, kind_of
from outrider.torch.training.kinds.language_model import LanguageModelKind
from outrider.torch.training.kinds.segment_memory import SegmentMemoryKind
from tests.helpers import tiny


def run(**model: Any) -> RunConfig:
    values = {"name": "run", "folder": "run", "data": {"folder": "data"}, "model": model}
    return build_config(RunConfig, values)


def test_every_type_has_a_kind() -> None:
    types = get_args(ModelSection.model_fields["type"].annotation)
    assert set(KINDS) == set(types)
    assert all(type(kind_of(run(type=name))) is KINDS[name] for name in types)


@pytest.mark.parametrize("memory", [0, 6])
def test_a_memory_selects_the_kind(tmp_path: Path, memory: int) -> None:
    keys = {"position": "relative", "max_positions": 8, "memory": memory}
    tiny.language_model(**keys).save_pretrained(tmp_path)
    expected = SegmentMemoryKind if memory else LanguageModelKind
    for model in (keys, {"start": str(tmp_path)}):
        kind = kind_of(run(type="language_model", **model))
        assert type(kind) is expected
    model = tiny.language_model(**keys)
    assert kind.segment(model) == (8 if memory else None)
