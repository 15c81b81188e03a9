"""`/watch` over a real socket: the rounds of both modes and the final events."""

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import outrider
from outrider.decoding import Session
from outrider.serving.api import watch
from outrider.serving.engine import Engine
from outrider.serving.limits import Limits
from outrider.serving.request import TextRequest
from tests.helpers import drafted, families

DEMO = Path(__file__).resolve().parents[3] / "demo" / "en-de"
PAGE = DEMO.parents[1] / "src" / "outrider" / "serving" / "page"
TEXT = "a small dog runs. two men play! where is the station?"


def events(url: str, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """Send a request and parse its events."""
    answer = httpx.post(f"{url}/watch", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in answer.text.split("\n\n") if block]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in blocks
    ]


def of(found: list[tuple[str, dict[str, Any]]], name: str, mode: str) -> list[dict[str, Any]]:
    return [data for kind, data in found if kind == name and data["mode"] == mode]


def spelled(rounds: list[dict[str, Any]]) -> str:
    """Join the kept tokens, piece by piece."""
    pieces: dict[int, str] = {}
    for one in rounds:
        kept = [t["text"] for t in one["tokens"] if t["kind"] not in ("refused", "dropped")]
        pieces[one["piece"]] = pieces.get(one["piece"], "") + "".join(kept)
    return " ".join(pieces[n].strip() for n in sorted(pieces))


def test_both_modes_stream_the_rounds_of_the_same_text(url, offline) -> None:
    found = events(url, text=TEXT, draft_tokens=3)
    names = [name for name, _ in found]
    assert names[0] == "start"
    assert names.index("done") < len(names) - 1
    assert found[0][1]["draft_tokens"] == 3
    assert [[token["ends"] for token in piece][-1] for piece in found[0][1]["source"]] == [True] * 3
    for mode in ("tandem", "ar"):
        rounds, (done,) = of(found, "round", mode), of(found, "done", mode)
        assert done["text"] == offline.translate(TEXT, mode="ar")
        assert spelled(rounds) == done["text"]
        assert [one["at"] for one in rounds] == sorted(one["at"] for one in rounds)
        counts = [sum(one["piece"] == piece for one in rounds) for piece in range(3)]
        assert [len(times) for times in done["at"]] == counts
        assert all(times == sorted(times) and times[0] > 0 for times in done["at"])
    plain = of(found, "round", "ar")
    assert {token["kind"] for one in plain for token in one["tokens"]} == {"plain"}
    assert {len(one["tokens"]) for one in plain} == {1}
    drafted = of(found, "round", "tandem")
    assert len(drafted) < len(plain), "drafts save rounds"
    assert "accepted" in {token["kind"] for one in drafted for token in one["tokens"]}
    offline_rounds = offline.results([TEXT], mode="tandem", draft_tokens=3)[0][0].rounds
    assert len(drafted) == len(offline_rounds)


def test_a_right_to_left_model_is_refused(serve, tmp_path: Path) -> None:
    folder = drafted.save_translator(tmp_path / "turned", right_to_left=True)
    url = serve(f"en-de={folder}")
    answer = httpx.post(f"{url}/watch", json={"text": TEXT}, timeout=60)
    assert "models with right_to_left are not supported here" in answer.text
    assert "round" not in answer.text
    assert httpx.post(f"{url}/translate", json={"q": TEXT, "source": "en", "target": "de"}).text


def test_gamma_is_used(url, offline) -> None:
    refused = []
    for gamma in (0.0, 1.0):
        found = events(url, text=TEXT, gamma=gamma, draft_tokens=4)
        (done,) = of(found, "done", "tandem")
        assert done["text"] == offline.translate(TEXT, mode="tandem", gamma=gamma, draft_tokens=4)
        tokens = [token for one in of(found, "round", "tandem") for token in one["tokens"]]
        refused.append(sum(token["kind"] == "refused" for token in tokens) / len(tokens))
    assert refused[1] < refused[0]


def test_a_slow_first_run_is_repeated(url, monkeypatch) -> None:
    monkeypatch.setattr(watch, "RUN_SECONDS", 5e-4)  # seconds: every run takes longer
    for mode in ("tandem", "ar"):
        (done,) = of(events(url, text=TEXT), "done", mode)
        assert done["takes"] > 1


def test_the_block_is_limited_by_the_drafter(url) -> None:
    start = events(url, text="two men", draft_tokens=60)[0][1]
    assert start["draft_tokens"] == start["longest_draft"] == 6


def test_the_end_token_is_a_round_too(serve) -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    text = "Do you think that she will come to the party tonight? Thank you."
    found = events(serve(f"en-de={DEMO}", load_options={"backend": "native"}), text=text)
    for mode in ("ar", "tandem"):
        tokens = {one["piece"]: one["tokens"] for one in of(found, "round", mode)}
        assert [piece[-1]["ends"] for _, piece in sorted(tokens.items())] == [True, True]
        assert of(found, "done", mode)[0]["text"] == spelled(of(found, "round", mode))


def test_models_and_their_languages(url) -> None:
    (one,) = httpx.get(f"{url}/watch").json()
    assert one == {"name": "en-de", "pair": ["en", "de"], "sources": [], "targets": []}


def test_a_model_without_a_drafter_and_a_language_model(serve, writer, tmp_path) -> None:
    bare = drafted.save_translator(tmp_path / "bare", drafter=False)
    url = serve(f"en-de={bare}", writer)
    found = events(url, model="en-de", text="two men")
    assert found[0][1]["draft_tokens"] is None
    assert of(found, "done", "tandem") == []
    assert len(of(found, "done", "ar")) == 1
    found = events(url, model=writer.name, text="a dog ")
    texts = {of(found, "done", mode)[0]["text"] for mode in ("ar", "tandem")}
    assert len(texts) == 1
    assert found[0][1]["source"] == [[]]


def test_a_multilingual_model_needs_two_languages(serve, tmp_path) -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    folder = families.save(
        families.make("m2m_100"), tmp_path / "many", before="eng_Latn", after="</s>", languages=True
    )
    url = serve(folder, load_options={"backend": "native"})
    (model,) = httpx.get(f"{url}/watch").json()
    assert model["pair"] is None
    assert model["sources"] == model["targets"] == sorted(families.LANGUAGES)
    told = {"source": "deu_Latn", "target": "fra_Latn"}
    found = events(url, text="abc", **told)
    loaded = outrider.load(folder, backend="native").between("deu_Latn", "fra_Latn")
    (done,), (looks,) = of(found, "done", "ar"), of(found, "looks", "ar")
    assert done["text"] == loaded.translate("abc")
    assert len(looks["weights"][0]) == len(of(found, "round", "ar")), "one for each said token"
    answer = httpx.post(f"{url}/watch", json={"text": "abc"})
    assert answer.status_code == 422
    assert "target_language" in answer.json()["error"]


def test_attention_is_sent_if_the_backend_returns_it(serve, translator, url) -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    assert "looks" not in {name for name, _ in events(url, text="two men")}
    native = serve(f"en-de={translator}", load_options={"backend": "native"})
    found = events(native, text=TEXT)
    for mode in ("ar", "tandem"):
        (looks,) = of(found, "looks", mode)
        rounds = of(found, "round", mode)
        for piece, weights in enumerate(looks["weights"]):
            kept = [
                token
                for one in rounds
                for token in one["tokens"]
                if one["piece"] == piece and token["kind"] not in ("refused", "dropped")
            ]
            assert len(weights) == len(kept)
            assert {len(row) for row in weights} == {len(found[0][1]["source"][piece])}
            assert all(sum(row) == pytest.approx(1, abs=0.05) for row in weights)


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"text": ""}, 422, "text"),
        ({"text": "a" * 1001}, 422, "text"),
        ({"text": "a" * 700}, 422, "701 tokens are too many; send at most 600"),
        ({"model": "nobody"}, 404, "no model is called 'nobody'"),
        ({"gamma": 1.5}, 422, "gamma"),
        ({"draft_tokens": 0}, 422, "draft_tokens"),
        ({"nothing": 1}, 422, "nothing"),
    ],
    ids=str,
)
def test_errors_are_named(url, change, status, said) -> None:
    answer = httpx.post(f"{url}/watch", json={"text": "a"} | change)
    assert answer.status_code == status
    assert said in json.dumps(answer.json())


def test_an_internal_error_is_the_last_event(url, monkeypatch) -> None:
    async def broken(*_: object) -> Any:
        raise RuntimeError("with a user's text in it")

    monkeypatch.setattr(watch, "_time", broken)
    name, data = events(url, text="two men")[-1]
    assert (name, data) == ("error", {"message": "internal server error"})


def test_one_deadline_covers_both_modes(serve, translator, monkeypatch) -> None:
    step, waited = Session.step, []

    def late(session: Session) -> Any:
        if session.busy:
            time.sleep(0.2 if waited else 2.5)
            waited.append(session)
        return step(session)

    url = serve(f"en-de={translator}", limits=Limits(seconds=4))
    assert of(events(url, text="two"), "done", "ar"), "without a delay it is in time"
    monkeypatch.setattr(Session, "step", late)
    began = time.monotonic()
    name, data = events(url, text="two")[-1]
    assert 3.9 < time.monotonic() - began < 6
    assert name == "error"
    assert data["message"].startswith("the request did not finish within 4 seconds")


def test_the_deadline_of_every_run_counts_from_the_request(url, monkeypatch) -> None:
    began, admit = [], Engine.admit

    def noted(self: Engine, request: TextRequest, **given: Any) -> Any:
        began.append(request.began)
        return admit(self, request, **given)

    monkeypatch.setattr(Engine, "admit", noted)
    names = [name for name, _ in events(url, text="two men")]
    assert names.count("done") == 2
    assert len(began) >= 2
    assert len(set(began)) == 1
    assert began[0] is not None


def test_a_disconnected_client_is_cancelled(serve, translator, monkeypatch) -> None:
    step = Session.step

    def late(session: Session) -> Any:
        if session.busy:
            time.sleep(0.1)
        return step(session)

    monkeypatch.setattr(Session, "step", late)
    url = serve(f"en-de={translator}")
    with httpx.Client(base_url=url) as client:
        with client.stream("POST", "/watch", json={"text": TEXT}) as answer:
            lines = answer.iter_lines()
            while next(lines) != "event: round":
                pass
            assert 'outrider_queue_requests{model="en-de"} 1.0' in client.get("/metrics").text
        until = time.monotonic() + 10
        while 'outrider_cancelled_total{model="en-de"} 1.0' not in client.get("/metrics").text:
            assert time.monotonic() < until
        assert 'outrider_queue_requests{model="en-de"} 0.0' in client.get("/metrics").text
        rounds = 'outrider_rounds_total{model="en-de"}'
        figures = []
        for _ in range(2):
            time.sleep(0.2)
            (line,) = [one for one in client.get("/metrics").text.splitlines() if rounds in one]
            figures.append(line)
        assert figures[0] == figures[1], "nothing is decoded any more"


def test_files_of_the_pages(url) -> None:
    for path in ("/", "/race"):
        page = httpx.get(f"{url}{path}")
        assert page.status_code == 200
        assert "default-src 'self'" in page.headers["content-security-policy"]
        names = set(re.findall(r'(?:src|href)="page/([^"]+)"', page.text))
        assert {"page.css", "theme.js", "words.js"} < names
        assert all((PAGE / name).is_file() for name in names)
        assert not re.search(r"<script>|<style|style=|://", page.text)
    for name in ("page.css", "translate.js", "words.js", "logo.svg"):
        part = httpx.get(f"{url}/page/{name}")
        assert part.status_code == 200
        whole = httpx.get(f"{url}/page/{name}", headers={"Accept-Encoding": "identity"})
        assert whole.content == part.content == (PAGE / name).read_bytes()
        assert int(part.headers["content-length"]) < len(whole.content)
        again = httpx.get(f"{url}/page/{name}", headers={"If-None-Match": part.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e/app.py"):
        assert httpx.get(f"{url}/page/{name}").status_code == 404
