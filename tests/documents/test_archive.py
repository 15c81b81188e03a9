"""Archives: copies keep the bytes of unchanged members; unsafe archives are refused."""

import io
import struct
import zipfile

import pytest

from outrider.documents import archive as archive_module
from outrider.documents.archive import Archive
from outrider.errors import InputError
from tests.helpers.marking import unzipped, zipped

MEMBERS = {"mimetype": "a/b", "a.xml": "<a>" + "b" * 999 + "</a>", "b/c.png": bytes(range(256))}


def streamed(members: dict[str, str], comment: bytes = b"") -> bytes:
    """Return an archive whose sizes follow the data, as programs write that cannot seek."""

    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError

        def tell(self) -> int:
            raise OSError

    raw = Stream()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = comment
        for name, data in members.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data.encode())
    return raw.getvalue()


def entries(content: bytes) -> dict[str, tuple[object, ...]]:
    """Return the metadata and compressed bytes of the members, with their local headers."""
    found = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for one in archive.infolist():
            start = one.header_offset
            lengths = struct.unpack_from("<HH", content, start + 26)
            end = start + 30 + sum(lengths) + one.compress_size
            record = (one.date_time, one.extra, one.compress_type, one.external_attr, one.comment)
            found[one.filename] = (*record, one.flag_bits, content[start:end])
    return found


def test_without_changes_the_bytes_are_the_same() -> None:
    content = zipped(MEMBERS)
    archive = Archive(content)
    assert archive.replace({}) is content
    assert archive.replace({"a.xml": archive.read("a.xml")}) is content


@pytest.mark.parametrize("build", [zipped, streamed])
def test_only_the_changed_member_differs(build: object) -> None:
    content = build({"first.xml": "<a/>" * 9, "é/a.xml": "<b>b</b>", "last": "c" * 99})  # type: ignore[operator]
    out = Archive(content).replace({"é/a.xml": b"<b>longer</b>" * 50})
    before, after = entries(content), entries(out)
    assert list(before) == list(after)
    assert all((before[name] == after[name]) == (name != "é/a.xml") for name in before)
    assert before["é/a.xml"][0] == after["é/a.xml"][0]
    assert unzipped(out)["é/a.xml"] == b"<b>longer</b>" * 50
    assert Archive(out).replace({"é/a.xml": b"<b>b</b>"})  # the copy is a valid archive


def test_stored_members_stay_stored_and_the_comment_is_kept() -> None:
    content = streamed({"a": "b"}, b"a comment")
    assert Archive(content).replace({"a": b"c"}).endswith(b"a comment")
    out = Archive(zipped(MEMBERS)).replace({"mimetype": b"c/d"})
    assert out[30:41] == b"mimetypec/d"


def test_members_may_follow_in_another_order_than_in_the_directory() -> None:
    raw = bytearray(zipped({"a": "1", "b": "2"}))
    start = raw.index(b"PK\1\2")
    length = 47
    first, second = raw[start : start + length], raw[start + length : start + 2 * length]
    raw[start : start + 2 * length] = second + first
    out = Archive(bytes(raw)).replace({"a": b"333"})
    assert unzipped(out) == {"b": b"2", "a": b"333"}


def patched(content: bytes, signature: bytes, offset: int, value: bytes) -> bytes:
    """Return the content with other bytes after the first signature."""
    start = content.index(signature) + offset
    return content[:start] + value + content[start + len(value) :]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"%PDF-1.7 ...", "PDF"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), r"save it as \.docx"),
        (b"{\\rtf1 }", "RTF"),
        (b"hello", "no zip archive"),
        (b"", "no zip archive"),
        (zipped(MEMBERS)[:-30], "no zip archive"),
        (zipped(MEMBERS)[500:], "damaged|before"),
        (b"junk" + zipped(MEMBERS), "before it"),
        (zipped({"../../etc/passwd": "a"}), "outside of it"),
        (zipped({"/etc/passwd": "a"}), "outside of it"),
        (zipped({"C:/a": "a"}), "outside of it"),
        (zipped({"a\\..\\b": "a"}), "outside of it"),
        (zipped({"a/" * 40: "a"}), "more than 32 folders"),
        (zipped({str(i): b"" for i in range(20_001)}), "more than 20000 members"),
        (patched(zipped(MEMBERS), b"PK\1\2", 8, b"\1"), "encrypted"),
        (patched(zipped(MEMBERS), b"PK\1\2", 10, b"\x0e"), "unusual method"),
        (patched(zipped(MEMBERS), b"PK\1\2", 20, b"\xff\0"), "overlaps"),
        (patched(zipped(MEMBERS), b"PK\3\4", 0, b"XX"), "damaged"),
        (
            zipped({"a": "1", "b": "1"}).replace(b"b1", b"a1").replace(b"b" + b"PK\5", b"aPK\5"),
            "twice",
        ),
    ],
)
def test_unsafe_and_damaged_archives_are_refused(content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        Archive(content)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("offset", [16, 24])
def test_wrong_checksums_and_sizes_are_refused(offset: int) -> None:
    content = patched(zipped(MEMBERS), b"PK\1\2", offset, b"\x02")
    with pytest.raises(InputError, match=r"damaged|shorter"):
        Archive(content).read("mimetype")


def test_a_damaged_member_is_refused_when_it_is_read() -> None:
    content = patched(zipped(MEMBERS), b"a.xml", 6, b"\xff\xff\xff")
    with pytest.raises(InputError, match="damaged"):
        Archive(content).read("a.xml")
    with pytest.raises(InputError, match=r"no x\.xml"):
        Archive(content).read("x.xml")


def test_zip_bombs_are_refused_before_they_are_read() -> None:
    archive = Archive(zipped({"a": "a", "word/document.xml": bytes(64 << 20), "b.xml": "b"}))
    with pytest.raises(InputError, match="64 MiB in 63 KiB; this is no real document"):
        archive.read("word/document.xml")
    assert archive.read("b.xml") == b"b"
    with pytest.raises(InputError, match="larger than 128 MiB"):
        Archive(zipped({"a": "a", "b": bytes(129 << 20)})).read("b")


def test_the_size_of_all_members_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "TOTAL_BYTES", 1000)
    with pytest.raises(InputError, match="when unpacked"):
        Archive(zipped(MEMBERS))
