"""`outrider translate --shards` with stores: the guarantees of a disk without atomic renames."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import pytest
from fsspec.core import url_to_fs

from outrider.cli.main import run
from outrider.errors import ConfigError, DataError, OutriderError, ResourceError
from outrider.files import remote
from outrider.jobs import folder as folder_module
from outrider.jobs import translate as module
from outrider.jobs.folder import open_job, read_status
from outrider.jobs.translate import translate_shards
from outrider.runtime import load
from tests.helpers.s3_server import s3_server

LINES = {
    "a.txt": ["ab cd.", "", "dd a"],
    "b.txt": ["cc dd ab.", "a"],
    "c.txt": ["bad dab.", "abcd", "c b a."],
    "d.txt": ["dada."],
    "empty.txt": [],
}
PLACE = {"threads": 1, "dtype": "float32", "device": "cpu"}
RECORDS = {"origin.json", "job.json"}


@pytest.fixture(scope="module")
def model(home: Path) -> Path:
    return home / "model"


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, str]:
    loaded = load(model, **PLACE)
    return {
        name: "".join(f"{text}\n" for text in loaded.translate(lines))
        for name, lines in LINES.items()
    }


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["disk", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty location for one test."""
    if request.param == "disk":
        return str(tmp_path)
    url = "memory:/" if request.param == "memory" else request.getfixturevalue("bucket")
    return f"{url}/{uuid4().hex}"


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> str:
    url = "memory:/" if request.param == "memory" else request.getfixturevalue("bucket")
    return f"{url}/{uuid4().hex}"


def put(url: str, raw: bytes | str) -> None:
    system, path = url_to_fs(url)
    if system.protocol == ("file", "local"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    system.pipe_file(path, raw.encode() if isinstance(raw, str) else raw)


def get(url: str) -> bytes:
    system, path = url_to_fs(url)
    return system.cat_file(path)


def remove(url: str) -> None:
    system, path = url_to_fs(url)
    system.rm_file(path)


def names(url: str) -> set[str]:
    system, path = url_to_fs(url)
    system.invalidate_cache()
    return {one.rpartition("/")[2] for one in system.ls(path, detail=False)}


def texts(url: str) -> dict[str, str]:
    return {n: get(f"{url}/{n}").decode() for n in names(url) if n.endswith(".txt")}


def fill(source: str) -> str:
    for name, lines in LINES.items():
        raw = "".join(f"{line}\n" for line in lines).encode()
        if name == "b.txt":
            name, raw = "b.txt.gz", gzip.compress(raw)
        put(f"{source}/{name}", raw)
    return source


def translated(model: Path, source: str, out: str, **options):
    return translate_shards(model, source, out, place=PLACE, progress=False, **options)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose translation started, in order."""
    begun: list[str] = []
    original = module._TranslateFile.__call__

    def counted(self, unit, advance) -> None:
        begun.append(unit.name)
        original(self, unit, advance)

    monkeypatch.setattr(module._TranslateFile, "__call__", counted)
    return begun


def interrupted(model: Path, source: str, out: str, *, at: str) -> None:
    """Run the command and interrupt it after `at` is written but before its record."""
    original = folder_module.JobFolder.finish

    def finish(self, unit, *arguments, **options) -> None:
        if unit.name == at:
            raise KeyboardInterrupt
        original(self, unit, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module.JobFolder, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            translated(model, source, out)


def test_every_store_gets_the_same_output(
    model: Path, expected: dict[str, str], root: str, started: list[str]
) -> None:
    source, out = fill(f"{root}/in"), f"{root}/out"
    assert str(translated(model, source, out)) == out
    assert texts(out) == expected
    assert names(out) == {*expected, "translated.json"}
    summary = json.loads(get(f"{out}/translated.json"))
    assert [one["rows"] for one in summary["files"]] == [3, 2, 3, 1, 0]
    status = read_status(out)
    assert (status.done, status.shards, status.rows_done) == (5, 5, 9)
    assert started == [*LINES]
    translated(model, source, f"{out}/")
    assert started == [*LINES], "nothing was left to do"


def test_from_a_disk_to_a_store_and_back(
    model: Path, expected: dict[str, str], store: str, tmp_path: Path
) -> None:
    fill(str(tmp_path / "in"))
    translated(model, str(tmp_path / "in"), f"{store}/out")
    assert texts(f"{store}/out") == expected
    fill(f"{store}/in")
    translated(model, f"{store}/in", tmp_path / "out")
    assert texts(str(tmp_path / "out")) == expected
    for name in expected:
        assert get(f"{store}/out/{name}") == (tmp_path / "out" / name).read_bytes()
    put(f"{store}/in/d.txt", "a\n")
    with pytest.raises(DataError, match=r"d\.txt was translated from another file"):
        translated(model, f"{store}/in", tmp_path.as_uri() + "/out")


def test_an_interrupted_job_is_resumed(
    model: Path, expected: dict[str, str], root: str, started: list[str]
) -> None:
    source, out = fill(f"{root}/in"), f"{root}/out"
    interrupted(model, source, out, at="c.txt")
    status = read_status(out)
    assert (status.done, status.shards, status.rows_done) == (2, 5, 5)
    put(f"{source}/a.txt", "dd a\n")  # finished, but the source has changed
    started.clear()
    translated(model, source, out)
    assert started == ["a.txt", "c.txt", "d.txt", "empty.txt"]
    assert texts(out) == {**expected, "a.txt": expected["a.txt"].splitlines(keepends=True)[2]}
    assert names(out) == {*expected, "translated.json"}


def test_a_shard_needs_its_record_and_the_recorded_content(
    model: Path, expected: dict[str, str], store: str, started: list[str]
) -> None:
    source, out = fill(f"{store}/in"), f"{store}/out"
    interrupted(model, source, out, at="d.txt")
    assert names(out) == {
        *("a.txt", "b.txt", "c.txt", "d.txt", *RECORDS),
        *("a.txt.done.json", "b.txt.done.json", "c.txt.done.json"),
    }
    record = json.loads(get(f"{out}/a.txt.done.json"))
    assert record["rows_read"] == 3
    assert record["input"] == "a.txt"
    assert len(record["shards"][0]["sha256"]) == 64
    assert record["weights"]
    remove(f"{out}/a.txt.done.json")
    put(f"{out}/b.txt", "something else\n")
    put(f"{out}/c.txt.done.json", "{")
    assert read_status(out).done == 1
    started.clear()
    translated(model, source, out)
    assert started == [*LINES]
    assert texts(out) == expected


def test_a_damaged_object_is_named_and_set_aside(
    model: Path, expected: dict[str, str], root: str, started: list[str]
) -> None:
    source, out = fill(f"{root}/in"), f"{root}/out"
    whole = get(f"{source}/b.txt.gz")
    put(f"{source}/b.txt.gz", whole[:12])
    said = r"in/b\.txt\.gz: damaged gzip.*set aside 1 of 5 shards \(of b\.txt\.gz\)"
    with pytest.raises(DataError, match=said):
        translated(model, source, out)
    assert list(read_status(out).aside) == ["b.txt"]
    put(f"{source}/b.txt.gz", whole)
    started.clear()
    translated(model, source, out)
    assert started == ["b.txt"]
    assert texts(out) == expected
    assert names(out) == {*expected, "translated.json"}


def test_an_object_that_changes_during_translation_is_refused(
    model: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = fill(f"{store}/in"), f"{store}/out"
    original = module._list_units

    def look(*arguments):
        found = original(*arguments)
        put(f"{source}/c.txt", "dab bad.\nabcd\nc b a.\n")  # the same number of rows
        return found

    monkeypatch.setattr(module, "_list_units", look)
    with pytest.raises(DataError, match=r"c\.txt: changed while it was translated; run again"):
        translated(model, source, out)
    assert "c.txt" not in names(out)


def test_other_settings_other_models_and_other_folders_do_not_mix(
    model: Path, store: str, tmp_path: Path
) -> None:
    source, out = fill(f"{store}/in"), f"{store}/out"
    interrupted(model, source, out, at="c.txt")
    for _ in ("unfinished", "finished"):
        with pytest.raises(DataError, match=r"out: was done differently \(decode was"):
            translated(model, source, out, strategy="beam", beams=2)
        translated(model, source, out)
    put(f"{source}/c.txt", "a\n")
    with pytest.raises(DataError, match=r"out: c\.txt was translated from another file"):
        translated(model, source, out)
    put(f"{store}/other/notes.md", "mine")
    with pytest.raises(DataError, match="other: exists and is not a translation"):
        translated(model, source, f"{store}/other")
    assert names(f"{store}/other") == {"notes.md"}


def test_a_second_driver_is_refused(model: Path, expected: dict[str, str], store: str) -> None:
    source, out = fill(f"{store}/in"), f"{store}/out"
    interrupted(model, source, out, at="c.txt")
    origin = json.loads(get(f"{out}/origin.json"))
    with open_job(out, origin):
        with pytest.raises(DataError, match="out: another process is working there; wait for it"):
            translated(model, source, out)
        assert ".lock" in names(out)
    assert ".lock" not in names(out)
    translated(model, source, out)
    assert texts(out) == expected


@pytest.mark.parametrize(
    ("claimed", "alive"),
    [
        ({"machine": "elsewhere", "process": 1, "ago": 10}, True),
        ({"machine": "elsewhere", "process": 1, "ago": 400}, False),
        ({"machine": "here", "process": "dead", "ago": 10}, False),
        ({"machine": "here", "process": "parent", "ago": 10}, True),
        ({"machine": "here", "process": "mine", "ago": 10}, False),
        ({}, False),
    ],
    ids=["heard of", "not heard of", "ended", "runs", "of an earlier container", "damaged"],
)
def test_a_dead_claim_is_taken_over(
    model: Path, store: str, monkeypatch: pytest.MonkeyPatch, claimed: dict, alive: bool
) -> None:
    monkeypatch.setattr(remote, "SETTLE", 0.0)
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    processes = {"dead": done.pid, "parent": os.getppid(), "mine": os.getpid()}
    if claimed:
        claimed = {
            "owner": "somebody",
            "machine": claimed["machine"].replace("here", socket.gethostname()),
            "process": processes.get(claimed["process"], claimed["process"]),
            "renewed": time.time() - claimed["ago"],
        }
    source, out = fill(f"{store}/in"), f"{store}/out"
    put(f"{out}/.lock", json.dumps(claimed))
    if alive:
        with pytest.raises(DataError, match="another process is working there"):
            translated(model, source, out)
        assert json.loads(get(f"{out}/.lock")) == claimed
    else:
        translated(model, source, out)
        assert names(out) == {*LINES, "translated.json"}


def test_a_claim_is_renewed_and_its_loss_is_detected(
    model: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BEAT", 0.02)
    out = f"{store}/out"
    with open_job(out, {}) as job:
        first = json.loads(get(f"{out}/.lock"))
        wait_for(lambda: json.loads(get(f"{out}/.lock"))["renewed"] > first["renewed"])
        job.store.check_alone()
        other = {**first, "owner": "somebody"}
        wait_for(lambda: put(f"{out}/.lock", json.dumps(other)) or {first["owner"]} <= remote._LOST)
        with pytest.raises(ResourceError, match="out: another process took over"):
            job.store.check_alone()
    assert json.loads(get(f"{out}/.lock")) == other, "it is another's"


def test_without_exclusive_create_the_last_writer_holds_the_lock(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = f"{store}/out"
    monkeypatch.setattr(remote, "SETTLE", 0.0)
    monkeypatch.setattr(remote.RemoteFolder, "create", lambda *_: None)
    with open_job(out, {}):
        assert json.loads(get(f"{out}/.lock"))["process"] == os.getpid()
    monkeypatch.setattr(
        remote.time, "sleep", lambda _: put(f"{out}/.lock", json.dumps({"owner": "faster"}))
    )
    with pytest.raises(DataError, match="another process is working"), open_job(out, {}):
        pass


def wait_for(what) -> None:
    ends = time.monotonic() + 30
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.01)


DRIVER = """
import sys, time
from outrider.jobs import folder, translate

moment, model, source, out = sys.argv[1:]

def stop(*_, **__):
    print("here", flush=True)
    time.sleep(600)

def at(unit, name, original):
    return lambda self, one, *rest, **more: (
        stop() if one.name == unit else original(self, one, *rest, **more)
    )

if moment == "start":
    original = translate._TranslateFile.__call__
    translate._TranslateFile.__call__ = at("c.txt", "start", original)
elif moment == "record":
    folder.JobFolder.finish = at("c.txt", "record", folder.JobFolder.finish)
else:
    folder.remove_records = stop
place = {"threads": 1, "dtype": "float32", "device": "cpu"}
translate.translate_shards(model, source, out, place=place, progress=False)
"""


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        pytest.param("start", ["c.txt", "d.txt", "empty.txt"], marks=pytest.mark.slow),
        ("record", ["c.txt", "d.txt", "empty.txt"]),
        pytest.param("end", [], marks=pytest.mark.slow),
    ],
)
def test_a_killed_job_on_s3_has_every_row_once_in_order(
    model: Path,
    expected: dict[str, str],
    bucket: str,
    started: list[str],
    moment: str,
    left: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    source, out = fill(f"{bucket}/{uuid4().hex}"), f"{bucket}/{uuid4().hex}"
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), moment, str(model), source, out],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "here\n"
    line = [
        "translate",
        "--no-guard",
        "-m",
        str(model),
        "--dtype=float32",
        "--threads=1",
        "--device=cpu",
    ]
    line += ["--shards", source, "--out", out]
    if moment != "end":
        assert run(line) == 2, "it is at work"
        assert f"outrider: {out}: another process is working there" in capfd.readouterr().err
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    assert ("c.txt" in names(out)) == (moment != "start")
    assert ("translated.json" in names(out)) == (moment == "end")
    assert run(["jobs", "status", out]) == 0
    told = capfd.readouterr().out
    assert f"folder     {out}" in told
    assert f"shards     {5 - len(left)} of 5" in told
    assert run(line) == 0
    assert capfd.readouterr().out.strip() == out
    assert started == left, "only what was not done is done"
    assert texts(out) == expected
    assert names(out) == {*expected, "translated.json"}
    summary = json.loads(get(f"{out}/translated.json"))
    assert {one["name"]: one["rows"] for one in summary["files"]} == {
        name: len(lines) for name, lines in LINES.items()
    }


def said(capfd: pytest.CaptureFixture[str], *line: str) -> str:
    """The error line of a failing command."""
    assert run([*line]) == 2
    (sentence,) = capfd.readouterr().err.splitlines()
    return sentence


def test_errors_are_one_sentence_with_the_url(
    model: Path, bucket: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(str(tmp_path / "in"))
    line = ("translate", "--no-guard", "-m", str(model), "--threads", "1", "--dtype", "float32")
    here, out = ("--shards", str(tmp_path / "in")), ("--out", str(tmp_path / "out"))
    missing = "does not exist (The specified bucket does not exist); check the name of the bucket"
    assert f"s3://nowhere/in: {missing}" in said(capfd, *line, "--shards", "s3://nowhere/in", *out)
    assert f"s3://nowhere/out: {missing}" in said(capfd, *line, *here, "--out", "s3://nowhere/out")
    assert "in: does not exist" in said(capfd, *line, "--shards", f"{bucket}/no/in", *out)
    assert "pear://x: no store is known as pear://" in said(
        capfd, *line, *here, "--out", "pear://x"
    )
    assert f"{bucket}/none: no job was started here" in said(
        capfd, "jobs", "status", f"{bucket}/none"
    )
    only = "got a URL of s3, but only --shards supports stores; give a path"
    assert f"--in: {only}" in said(capfd, *line, "--in", f"{bucket}/a")
    assert f"--out: {only}" in said(capfd, *line, "--out", f"{bucket}/a", "hello")
    with pytest.raises(ConfigError, match="workers: memory:// exists in one process only"):
        translated(model, "memory://in", tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fault", "error", "sentence"),
    [
        (
            PermissionError("Access Denied"),
            DataError,
            r"in: may not be read \(Access Denied\); check",
        ),
        (
            ZeroDivisionError("no route"),
            ResourceError,
            r"in: cannot be read \(no route\); check the",
        ),
    ],
)
def test_refusals_of_a_store_are_one_sentence(
    model: Path, monkeypatch: pytest.MonkeyPatch, fault, error: type[OutriderError], sentence: str
) -> None:
    def refuse(*_, **__):
        raise fault

    from fsspec.implementations.memory import MemoryFileSystem

    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    with pytest.raises(error, match=f"memory://{sentence}"):
        translated(model, "memory://in", "memory://out")


def test_a_read_only_store_keeps_finished_shards(
    model: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = fill(f"{store}/in"), f"{store}/out"
    system = url_to_fs(store)[0]
    original = system.put_file

    def refuse(here, there, **options):
        if there.endswith("b.txt"):
            raise PermissionError("Access Denied")
        return original(here, there, **options)

    with monkeypatch.context() as patch:
        patch.setattr(system, "put_file", refuse)
        sentence = r"out/b\.txt: may not be written \(Access Denied\); check the credentials.*"
        with pytest.raises(ResourceError, match=sentence + "finished shards are kept in"):
            translated(model, source, out)
    assert read_status(out).done == 1


def test_a_missing_package_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    fix = "needs gcsfs, which is not installed: pip install gcsfs"
    with pytest.raises(ConfigError, match=f"gs://bucket/in: {fix}"):
        translated(model, "gs://bucket/in", "memory://out")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(OutriderError, match=r"pip install 'outrider\[stores\]'"):
        translated(model, "memory://in", "memory://out")


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.skipif(find_spec("ray") is None, reason="needs outrider[ray]")
def test_workers_of_ray_write_the_same_to_s3(
    model: Path, expected: dict[str, str], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    source, out = fill(f"{bucket}/{uuid4().hex}"), f"{bucket}/{uuid4().hex}"
    line = ["translate", "--no-guard", "-m", str(model), "--dtype", "float32", "--device", "cpu"]
    line += ["--shards", source, "--out", out, "--workers", "2"]
    # In a process of its own: other tests fork this one, and Ray does not survive a fork.
    done = subprocess.run([sys.executable, "-m", "outrider", *line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == out
    assert texts(out) == expected
