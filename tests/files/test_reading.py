"""Reading JSON: a regular file of limited size and depth with one object, or one error message."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.errors import DataError, ModelError
from outrider.files import parse_json, read_json


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not JSON"),
        (b"[]", "must hold one JSON object, not a list"),
        (b"null", "must hold one JSON object, not null"),
        (b"3", "must hold one JSON object, not a number"),
        (b'"a"', "must hold one JSON object, not a text"),
        (b"true", "must hold one JSON object, not a truth value"),
        (b'{"a": 1', "is not JSON: Expecting"),
        (b'{"a": "\xff"}', "is not UTF-8 text: invalid start byte at byte 7"),
        (b"[" * 10_000 + b"]" * 10_000, "is nested deeper than 64 levels"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "is nested deeper than 64 levels"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the limit"),
    ],
)
def test_invalid_files_give_one_error_message(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=message) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text('{"a": [1, {"b": null}]}')
    (tmp_path / "config.json").symlink_to("blob")
    assert read_json(tmp_path / "config.json") == {"a": [1, {"b": None}]}


@pytest.mark.timeout(20)
def test_pipes_devices_and_folders_are_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "endless", "folder"):
        with pytest.raises(ModelError, match=f"{name}: is not a regular file"):
            read_json(tmp_path / name)


def test_reading_stops_at_the_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": "' + "x" * (1 << 20) + '"}')
    with pytest.raises(DataError, match="is larger than 1 MiB; fetch it again"):
        read_json(path, limit=1 << 20, error=DataError, fix="fetch it again")
    assert read_json(path, limit=2 << 20)["a"][:3] == "xxx"


def test_missing_files_and_invalid_names_give_one_error_message(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none: no such file"):
        read_json(tmp_path / "none")
    with pytest.raises(ModelError, match="cannot be read: embedded null byte"):
        read_json(tmp_path / "a\0b")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ModelError, match="cannot be read: Too many levels"):
        read_json(loop)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=9,
)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | JSON.map(lambda v: json.dumps(v).encode()))
@example(b'{"a": NaN}')
def test_any_bytes_give_an_object_or_one_error_message(raw: bytes) -> None:
    with suppress(ModelError):
        assert isinstance(parse_json(raw, Path("x")), dict)
