"""`outrider lab bench attention` on the command line, with a few tokens."""

import json

import pytest

from outrider_lab.bench.attention.scaling import Sweep

TINY = Sweep(lengths=(64, 128), short=(32,), peer_up_to=128, repeats=1, heads=2, width=8)


def test_it_measures_prints_writes_and_draws(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Sweep, "quick", classmethod(lambda cls: TINY))
    result, plot = tmp_path / "a.json", tmp_path / "a.png"
    options = ("--kinds", "sliding, full", "--quick", "--json", result, "--plot", plot)
    code, out, err = command("lab", "bench", "attention", *options)
    assert code == 0
    assert "sliding" in out
    assert "full at 128:" in err
    assert err.endswith(f"wrote {result}\nwrote {plot}\n")
    assert plot.read_bytes().startswith(b"\x89PNG")
    written = json.loads(result.read_text(encoding="utf-8"))
    assert list(written["kinds"]) == ["causal", "sliding", "full"]
    figures = {"slope", "speedup_16k", "memory_ratio_16k", "cache_bytes_64k", "short", "points"}
    assert figures <= set(written["kinds"]["sliding"])
    assert {"machine", "versions", "date"} <= set(written)


@pytest.mark.parametrize("kinds", ["slidng", "sliding,nothing"])
def test_an_unknown_kind_gives_one_line(command, kinds) -> None:
    code, _, err = command("lab", "bench", "attention", "--kinds", kinds)
    assert code == 2
    assert "--kinds: unknown" in err
    assert err.count("\n") == 1


def test_other_kinds_can_be_kept(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Sweep, "quick", classmethod(lambda cls: TINY))
    result = tmp_path / "a.json"
    options = ("lab", "bench", "attention", "--quick", "--json", result)
    assert command(*options, "--kinds", "sliding")[0] == 0
    first = json.loads(result.read_text(encoding="utf-8"))
    assert command(*options, "--kinds", "full", "--keep")[0] == 0
    both = json.loads(result.read_text(encoding="utf-8"))
    assert list(both["kinds"]) == ["causal", "full", "sliding"]
    assert both["kinds"]["sliding"] == first["kinds"]["sliding"]
    assert both["earlier"]["sliding"]["date"] == first["date"]


@pytest.mark.parametrize("content", [None, "no json", "{}"])
def test_nothing_to_keep_gives_one_line(command, content, tmp_path) -> None:
    result = tmp_path / "a.json"
    if content is not None:
        result.write_text(content, encoding="utf-8")
    code, _, err = command("lab", "bench", "attention", "--keep", "--json", result)
    assert code == 2
    assert "--keep: " in err
    assert err.count("\n") == 1
