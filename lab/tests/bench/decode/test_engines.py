"""The engines of the decode benchmark give the same output from the same weights."""

import sys
from pathlib import Path

import pytest

from outrider.backends import native
from outrider.errors import ConfigError, ModelError
from outrider_lab.bench.decode import engines as decode_engines
from outrider_lab.bench.decode.engines import EnginePlan, OutriderEngine, build_engine
from outrider_lab.bench.decode.plan import ENGINES, plan_engines
from tests.helpers import drafted

TEXTS = ["two men play", "a dog", "where is the station? it is late", "we go home!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return drafted.save_translator(folder, ctc=True, norm="post", logits_bias=True)


def test_all_engines_write_the_same_texts(folder: Path) -> None:
    pytest.importorskip("ctranslate2", reason="install outrider[peers] to test peers")
    names = ["outrider-torch", "ctranslate2-float32", "transformers"]
    with plan_engines(folder, names, [1], shallow=folder) as (plans, missing):
        assert not missing
        ours, *others = map(build_engine, plans)
        wanted = ours.translate(TEXTS, "ar")
        assert wanted.tokens > 20
        for engine in others:
            assert engine.translate(TEXTS, "ar") == wanted
        for text in TEXTS:
            found = others[1].translate([text], "assisted")
            assert found == ours.translate([text], "ar")
        assert others[1].largest_batch == {"assisted": 1}
        assert [engine.split_time([TEXTS], "ar") for engine in others] == [None, None]
        assert ours.translate(TEXTS, "tandem") == wanted


def test_int8_is_close(folder: Path) -> None:
    pytest.importorskip("ctranslate2", reason="install outrider[peers] to test peers")
    with plan_engines(folder, ["ctranslate2-int8"], [1]) as (plans, _):
        assert plans[0].dtype == "int8"
        assert len(build_engine(plans[0]).translate(TEXTS, "ar").texts) == len(TEXTS)


def test_tandem_on_the_native_core_equals_greedy(folder: Path) -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    with plan_engines(folder, ["outrider-native-int8", "outrider-native-float32"], [1]) as (
        plans,
        _,
    ):
        fast, exact = map(build_engine, plans)
    assert fast.modes == {"ar": None, "tandem": None, "parallel": None}
    assert fast.translate(TEXTS, "tandem") == fast.translate(TEXTS, "ar")
    torch = build_engine(EnginePlan("outrider-torch", "torch", folder))
    assert exact.translate(TEXTS, "ar") == torch.translate(TEXTS, "ar")
    assert fast.split_time([TEXTS], "tandem").ratio_to_bare_engine > 1


def test_the_time_split_adds_up(folder: Path) -> None:
    engine = OutriderEngine(EnginePlan("outrider-torch", "torch", folder, modes=("ar", "tandem")))
    engine.translate(TEXTS, "tandem")
    plain = engine.split_time([TEXTS[:2], TEXTS[2:]], "ar")
    assert plain.sentences == 4
    assert set(plain.core) == {"encode", "greedy"}
    assert 0 < plain.text < plain.wall
    assert 0 < sum(plain.core.values()) < plain.wall - plain.text
    assert plain.ratio_to_bare_engine > 1
    drafting = engine.split_time([[text] for text in TEXTS], "tandem")
    assert drafting.sentences == 4
    assert drafting.statistics["rounds"] + drafting.statistics["plain_rows"] > 0
    parallel = engine.split_time([TEXTS], "parallel")
    assert set(parallel.core) == {"encode", "fill"}, "the time of a part is the core's"


def test_unsupported_modes_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = drafted.save_translator(tmp_path / "plain", drafter=False)
    plan = EnginePlan("outrider-torch", "torch", folder, modes=decode_engines.MODES)
    modes = build_engine(plan).modes
    assert modes["ar"] is None
    assert "has no drafter" in modes["tandem"]
    assert "needs a CTC decoder or a drafter" in modes["parallel"]
    monkeypatch.setattr(native, "outrider_native", None)
    with pytest.raises(ConfigError, match="needs outrider-native, which"):
        build_engine(EnginePlan("outrider-native-int8", "native", folder, "int8"))
    lm = drafted.save_language_model(tmp_path / "lm")
    with pytest.raises(ModelError, match="is a language model"):
        build_engine(EnginePlan("outrider-torch", "torch", lm))


def test_engines_that_cannot_be_planned_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = drafted.save_translator(tmp_path / "pre")  # pre-norm, unlike Marian models
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with plan_engines(folder, ENGINES, [1, 2], slow_once=True) as (plans, missing):
        assert [(plan.name, plan.threads) for plan in plans] == [
            ("outrider-torch", 1),
            ("outrider-native-int8", 1),
            ("outrider-native-int8", 2),
            ("outrider-native-float32", 1),
            ("outrider-native-float32", 2),
        ]
    reasons = {one.engine: one.reason for one in missing}
    assert list(reasons) == [
        "ctranslate2-int8",
        "ctranslate2-float32",
        "transformers",
        "shallow-native-int8",
        "shallow-ctranslate2-int8",
    ]
    assert "outrider[peers]" in reasons["ctranslate2-int8"]
    assert "norm is 'pre'" in reasons["transformers"]
    assert "--shallow FOLDER" in reasons["shallow-native-int8"]
