"""The claims of docs/results.md: every figure is in a file, every verdict is one of four."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.torch.nn.attention import adaptive_span, tiled
from outrider_lab.tasks import build_task

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
VERDICTS = ("holds", "holds in part", "does not hold", "not shown")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
Figures = Iterator[float | str]


def claims() -> dict[str, list[str]]:
    """Return experiment, finding and verdict of every claim."""
    table = PAGE.partition("| claim | tried on |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {claim: rest for claim, *rest in rows}


def result(name: str) -> Any:
    """Return a file of results or of an example."""
    path = ROOT / ("examples/memory-rl" if name in ("memory", "segments") else "results")
    return json.loads((path / f"{name}.json").read_text(encoding="utf-8"))


def compared(name: str, model: str) -> dict[str, Any]:
    """Return the scores of one model of a comparison by length."""
    found = next(one for one in result(f"compare-{name}")["models"] if one["name"] == model)
    found["points"] = {one["length"]: one["value"] for one in found["summary"]["points"]}
    return found


def tokens_a_second(name: str) -> float:
    """Return the target tokens per CPU second at which a translation model is trained."""
    (run,) = compared("translation", name)["runs"]
    return float(run["tokens"] / run["cpu_seconds"])


def fat_speed() -> Figures:
    seconds = result("scores")["seconds"]
    slow, dot = seconds["causal slow"], seconds["causal scaled_dot"]
    ratios = [slow[length] / dot[length] for length in slow]
    yield f"{tokens_a_second('fat') / tokens_a_second('transformer'):.2f}"
    yield from (f"{min(ratios):.0f}", f"{max(ratios):.0f}")


def fat_size() -> Figures:
    for name in ("fat", "transformer"):
        yield f"{compared('translation', name)['parameters'] / 1e6:.1f}"


def skipped() -> Figures:
    for row in result("halting")["measured"]:
        of = row["what"], row["pass"]
        if of == ("skipping, full", "whole") and row["left_out"] in (0.25, 0.5, 0.75):
            yield f"{100 * row['saved']:.0f}"


def linear() -> Figures:
    kinds = result("attention-linear")["kinds"]
    yield from (f"{kinds['linear']['speedup_16k']:.1f}", "16,384", "65,536")
    yield f"{kinds['linear']['cache_bytes_64k'] / 1e3:.0f}"
    yield f"{kinds['causal']['cache_bytes_64k'] / 1e6:.0f}"
    yield f"{kinds['linear']['memory_ratio_16k']:.1f}"


def modes() -> dict[str, Any]:
    return {one["name"]: one for one in result("modes-tatoeba")["modes"]}


def at_once() -> Figures:
    ctc, alone = modes()["ctc 1 pass"], result("ar-nar-gamma")["alone"]
    yield from (f"{ctc['speed'][0]['ratio_to_greedy']:.1f}", "1", f"{ctc['bleu']:.1f}")
    yield f"{modes()['greedy']['bleu']:.1f}"
    yield from (f"{alone[half]['bleu']:.1f}" for half in ("nar", "ar"))


def mixture() -> Figures:
    steps = {row["gamma"]: row["bleu"] for row in result("ar-nar-gamma")["tandem"]}
    quarter, greedy = modes()["tandem γ 0.25"], modes()["greedy"]
    yield from (f"{steps[0]:.1f}", "0", f"{steps[1]:.1f}", "1", "0.25")
    yield from (f"{one[key]:.1f}" for one in (quarter, greedy) for key in ("bleu", "chrf"))
    yield from (f"{quarter['speed'][0]['ratio_to_greedy']:.1f}", "1")


def fast() -> Figures:
    yield f"{compared('translation', 'fast')['points'][None]:.1f}"
    yield f"{tokens_a_second('fast') / tokens_a_second('transformer'):.2f}"
    for task, length in (("reverse", 40), ("addition", 13)):
        if task == "reverse":
            yield str(length)
        yield from (
            f"{100 * compared(task, name)['points'][length]:.0f}"
            for name in ("fast", "transformer")
        )


def copying() -> Figures:
    kinds = ("sinusoidal", "rotary", "relative", "alibi")
    points = [compared("positions", f"transformer position={kind}")["points"] for kind in kinds]
    known = [100 * one[20] for one in points]
    yield from ("20", f"{min(known):.0f}", f"{max(known):.0f}", "30")
    yield from (f"{100 * one[30]:.0f}" for one in points[:3])
    yield from ("40", f"{100 * max(one[40] for one in points):.0f}")


def auxiliary() -> Figures:
    page = (ROOT / "docs" / "auxiliary-losses.md").read_text(encoding="utf-8")
    with_them, without = (
        [float(cell) for cell in line.split("|")[2:5]]
        for line in page.splitlines()
        if line.startswith("| `rotary`")
    )
    assert abs(without[2] - with_them[2]) < 0.005
    yield from (f"{without[0] - with_them[0]:.2f}", "100", "300")


def memory_helps() -> Figures:
    found = result("wikitext2-memory")
    for one in (
        found["with_memory"][str(found["memory"])],
        found["plain"]["windows_side_by_side"],
        found["plain"]["windows_overlapping"],
        found["with_memory"]["0"],
    ):
        yield f"{one['perplexity_per_word']:.0f}"


def memory_is_fast() -> Figures:
    race = result("wikitext2-memory")["race"]
    assert (
        f"{race['tokens']:,} tokens"
        in claims()["evaluation with a memory is far faster (Transformer-XL)"][0]
    )
    same = {f"{race[way]['perplexity']:.1f}" for way in ("memory", "sliding_window")}
    yield from (f"{race['speedup']:.0f}", *same)


def spans_by_layer() -> Figures:
    (found,) = result("adaptive-span")["adaptive"]
    spans = sorted(span for layer in found["spans"] for span in layer)
    assert max(found["spans"][-1]) == spans[-1]
    yield from ("0", "1", f"{len(spans)}", f"{spans[-1]}", f"{found['max_span']}", f"{spans[-2]}")


def spans_save() -> Figures:
    found = result("adaptive-span")
    (ours,), (window,) = found["adaptive"], found["fixed"]
    yield from ("65,536", f"{ours['cache_bytes_64k'] / 1e6:.1f}")
    yield from (f"{ours['cache_bytes_64k_causal'] / 1e6:.0f}", "256")
    yield from (f"{ours['nats_per_token']:.3f}", "256", f"{window['nats_per_token']:.3f}")


def sparse() -> Figures:
    kinds = result("attention")["kinds"]
    slopes = {f"{kinds[kind]['slope']:.2f}" for kind in ("fixed", "strided")}
    yield from (*slopes, f"{kinds['causal']['slope']:.2f}", "16,384")
    yield from (f"{kinds[kind]['speedup_16k']:.1f}" for kind in ("fixed", "strided"))
    yield "65,536"
    yield from (f"{kinds['fixed']['cache_bytes_64k'] / 1e6:.1f}",)
    assert kinds["strided"]["cache_bytes_64k"] == kinds["causal"]["cache_bytes_64k"]
    yield f"{kinds['strided']['cache_bytes_64k'] / 1e6:.0f}"


def hashing() -> Figures:
    models = {one["rounds"]: one for one in result("lsh-duplication")["models"]}
    for rounds in (4, 2, 1):
        share = 100 * models[rounds]["accuracy"][str(rounds)]
        yield "100" if share == 100 else f"{share:.1f}"
    yield f"{100 * models['full']['accuracy']['full']:.0f}"
    yield from (f"{models[one]['cpu_seconds']:.0f}" for one in ("full", 4))


def reversible() -> Figures:
    found = result("reversible")
    yield f"{found['bytes_per_layer']['reversible'] / 1e6:.2f}"
    yield f"{found['bytes_per_layer']['plain'] / 1e6:.0f}"
    seconds = {(one["way"], one["layers"]): one["seconds"] for one in found["points"]}
    ratios = [
        seconds["reversible", layers] / seconds["plain", layers]
        for way, layers in seconds
        if way == "plain"
    ]
    yield from (f"{min(ratios):.1f}", f"{max(ratios):.1f}")


def parity() -> Figures:
    seeds = [
        {one["length"]: one for one in run["scores"]["points"]}
        for run in compared("parity", "universal-transformer")["runs"]
    ]
    yield from (str(sum(2**bits for bits in range(1, 9))), "8", "12")
    right = [100 * seed[12]["value"] for seed in seeds]
    yield from (f"{min(right):.1f}", f"{max(right):.1f}", f"{100 * seeds[0][12]['chance']:.1f}")
    yield from ("1", "8")
    yield from (f"{seed[bits]['ponder']:.1f}" for seed in seeds for bits in (1, 8))


def gates_in_rl() -> Figures:
    solved = {
        (one["rate"], one["name"]): round(one["solved"] * 6) for one in result("memory")["runs"]
    }
    names = ("Transformer", "GTrXL, gate bias 2", "GTrXL, gate bias 7")
    low, high = ([solved[rate, name] for name in names] for rate in (0.003, 0.01))
    assert low[1] == low[2]
    yield from ("0.003", str(low[0]), "6", str(low[1]), "0.01", *map(str, high), "2", "7")
    runs = [(one["model"]["memory"], one["solved"] * 4) for one in segments()]
    assert [seeds for memory, seeds in runs if memory < 12] == [0] * 4
    (plain, gated) = (seeds for memory, seeds in runs if memory == 12)
    yield from ("12", f"{plain:.0f}", "4", f"{gated:.0f}", "6")


def segments() -> list[dict[str, Any]]:
    runs = result("segments")["runs"]
    for one in runs:
        one["model"].setdefault("memory", 0)
    return sorted(runs, key=lambda one: (one["model"]["memory"], one["name"] != "Transformer"))


def recall() -> Figures:
    gated, plain = compared("recall", "gated"), compared("recall", "ungated")
    yield "2,000"
    yield from (f"{3 * gated['summary']['learned']:.0f}", "3")
    yield f"{3 * plain['summary']['learned']:.0f}"
    yield f"{gated['summary']['cpu_seconds'] / plain['summary']['cpu_seconds']:.1f}"
    yield from ("32", *(f"{100 * one['points'][32]:.0f}" for one in (gated, plain)))


def gate_bias() -> Figures:
    losses = {row["gate_bias"]: row["losses"] for row in result("gate-bias")["rows"]}
    early = [sum(seed[0] < 0.01 for seed in losses[bias]) for bias in (0.0, 1.0)]
    assert early[1] == 0
    stuck = sum(seed[-1] > 2.9 for seed in losses[2.0])
    yield from ("100", "0.01", str(early[0]), "0", "1", "2", str(stuck), "3", "300")


def none() -> Figures:
    yield from ()


FOUND: dict[str, Callable[[], Figures]] = {
    "FAT is faster": fat_speed,
    "FAT has fewer parameters": fat_size,
    "positions that need no work": skipped,
    "linear attention": linear,
    "writing all tokens at once": at_once,
    "a mixture by γ": mixture,
    "gradients of FAST": none,
    "scaling the dot product": none,
    "FAST is better": fast,
    "heads of deeper layers": none,
    "Transformers do not learn to copy": copying,
    "auxiliary losses": auxiliary,
    "a memory of the segment": memory_helps,
    "evaluation with a memory": memory_is_fast,
    "lower layers need": spans_by_layer,
    "short spans save": spans_save,
    "fixed and strided": sparse,
    "hashing finds": hashing,
    "reversible layers": reversible,
    "harder inputs": parity,
    "gates steady": gates_in_rl,
    "gates make": recall,
    "a gate bias": gate_bias,
}


def test_every_claim_is_checked_here() -> None:
    for claim in claims():
        assert sum(claim.startswith(start) for start in FOUND) == 1, claim
    assert len(claims()) == len(FOUND)


@pytest.mark.parametrize("start", FOUND)
def test_figures_of_a_claim_equal_those_in_its_files(start: str) -> None:
    (found,) = (rest[1] for claim, rest in claims().items() if claim.startswith(start))
    prose = re.sub(r"\]\([^)]*\)|n × n", "]", found)
    assert NUMBER.findall(prose) == [str(one) for one in FOUND[start]()]


def test_files_of_a_claim_exist() -> None:
    for claim, (tried, *_) in claims().items():
        for name in re.findall(r"`([\w-]+)`", tried):
            assert (ROOT / "results" / f"{name}.json").is_file(), f"{claim}: {name}"


def test_a_verdict_is_one_of_four() -> None:
    listed = PAGE.partition("| verdict | |")[2].partition("\n\n")[0]
    assert tuple(line.split(" | ")[0].strip("| ") for line in listed.splitlines()[2:]) == VERDICTS
    for claim, (*_, verdict) in claims().items():
        word, _, rest = verdict.replace(",", ":").partition(":")
        assert word in VERDICTS, claim
        assert (word != "holds in part") or rest, f"{claim}: names no part"


def test_a_claim_names_its_document_or_paper() -> None:
    for claim in claims():
        assert re.search(r"\([A-Z][^()]+\)$|\([a-z][^()]*[a-z]\)$", claim), claim


def test_all_inputs_of_parity_up_to_its_trained_length_are_trained_on() -> None:
    task = build_task("parity", {"train_length": 8, "test_lengths": [8, 12], "test_examples": 200})
    assert len({one.source for one in task.examples("train")}) == 510  # type: ignore[attr-defined]


def test_models_compared_on_text_use_the_dense_pass() -> None:
    for name, most in (("adaptive-span", adaptive_span), ("sparse-transformer", tiled)):
        length = compared("text", name)["settings"]["data"]["sequence_length"]
        assert length <= most.DENSE_UP_TO
