"""Zip archives of office files and books: limits, reading, and copies with changed members.

Nothing is unpacked to disk. A copy has the bytes of the original, except for the data, sizes and
checksums of changed members and the positions of the members.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from typing import NoReturn
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from outrider.documents import Document
from outrider.documents.marked import MarkedText
from outrider.errors import InputError

MEMBERS = 20_000
READ_BYTES = 128 << 20
"""Largest member that is read; larger ones, such as videos, are only copied."""
TOTAL_BYTES = 2 << 30
RATIO = 300
"""Most bytes of a member that is read for each of its compressed bytes, above 1 MiB."""
LEVELS = 32
"""Most folders around a member."""

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_MOST = 0xFFFFFFFF
_ENCRYPTED, _SIZES_FOLLOW = 0x41, 0x08
_DAMAGED: tuple[type[Exception], ...] = (
    *(BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError, EOFError),
    *(struct.error, zlib.error, OverflowError),
)
"""Exceptions of the library for damaged archives."""
_OTHER_FORMATS = {
    b"%PDF": "this is a PDF file, which is not supported; convert it to .docx or .txt",
    b"\xd0\xcf\x11\xe0": "this is an old binary office file (.doc, .xls, .ppt) or one with a "
    "password; save it as .docx, .xlsx or .pptx without a password",
    b"{\\rtf": "this is an RTF file; save it as .docx",
}
"""First bytes of files that are taken for office files."""


class Archive:
    """A zip archive whose members can be replaced."""

    def __init__(self, content: bytes) -> None:
        """Check the list of members; nothing is decompressed yet."""
        for first, hint in _OTHER_FORMATS.items():
            if content.startswith(first):
                raise InputError(hint)
        try:
            self._zip = ZipFile(BytesIO(content))
        except _DAMAGED as error:
            _refuse(f"this is no zip archive, or a damaged one ({error}); save the file again")
        self._content = content
        self._members = self._zip.infolist()
        self.names = dict.fromkeys(member.filename for member in self._members)
        self._check_limits()
        self._records = self._central_records()
        self._check_positions()

    def read(self, name: str) -> bytes:
        """Return the data of a member."""
        if name not in self.names:
            _refuse(f"the file has no {name}; it is damaged or of another format")
        member = self._zip.getinfo(name)
        if member.file_size > READ_BYTES:
            _refuse(f"{_shown(name)} is larger than {READ_BYTES >> 20} MiB; divide the file")
        if member.file_size > max(1 << 20, RATIO * member.compress_size):
            size = f"{member.file_size >> 20} MiB in {member.compress_size >> 10} KiB"
            _refuse(f"{_shown(name)} would be {size}; this is no real document")
        try:
            with self._zip.open(member) as source:
                data = source.read(member.file_size + 1)
        except _DAMAGED as error:
            _refuse(f"{_shown(name)} is damaged ({error}); save the file again")
        if len(data) != member.file_size:
            _refuse(f"{_shown(name)} is shorter than the archive states; save the file again")
        return data

    def replace(self, changes: Mapping[str, bytes]) -> bytes:
        """Return a copy of the archive with these data of members."""
        changes = {name: data for name, data in changes.items() if data != self.read(name)}
        if not changes:
            return self._content
        copy, records = bytearray(), dict.fromkeys(range(len(self._members)), b"")
        for index, start, end in self._entries():
            entry, record = self._content[start:end], self._records[index]
            data = changes.get(self._members[index].filename)
            if data is not None:
                entry, record = _changed(entry, record, data)
            fields = _CENTRAL.unpack_from(record)
            records[index] = _CENTRAL.pack(*fields[:-1], len(copy)) + record[_CENTRAL.size :]
            copy += entry
        if len(copy) > _MOST:
            _refuse("the translated file would be larger than 4 GiB")
        position, directory = len(copy), b"".join(records.values())
        comment, count = self._zip.comment, len(records)
        end_record = (b"PK\5\6", 0, 0, count, count, len(directory), position, len(comment))
        return bytes(copy + directory + _END.pack(*end_record) + comment)

    def _entries(self) -> list[tuple[int, int, int]]:
        """Return the members in the order of their data: index, first byte, one after the last."""
        order = sorted(range(len(self._members)), key=lambda i: self._members[i].header_offset)
        starts = [self._members[index].header_offset for index in order]
        return [
            (index, *ends)
            for index, ends in zip(order, pairwise([*starts, self._zip.start_dir]), strict=True)
        ]

    def _check_limits(self) -> None:
        if len(self._members) > MEMBERS:
            _refuse(f"the archive has more than {MEMBERS} members")
        if sum(member.file_size for member in self._members) > TOTAL_BYTES:
            _refuse(f"the archive would be larger than {TOTAL_BYTES >> 30} GiB when unpacked")
        seen = set()
        for member in self._members:
            _check(member)
            if member.filename in seen:
                _refuse(f"the archive has {_shown(member.filename)} twice; save the file again")
            seen.add(member.filename)

    def _central_records(self) -> list[bytes]:
        records, position = [], self._zip.start_dir
        for member in self._members:
            fields = _CENTRAL.unpack_from(self._content, position)
            end = position + _CENTRAL.size + sum(fields[10:13])
            if fields[16] != member.header_offset:
                _refuse("the archive has other data before it or is larger than 4 GiB")
            records.append(self._content[position:end])
            position = end
        return records

    def _check_positions(self) -> None:
        for index, start, end in self._entries():
            member = self._members[index]
            header = self._content[start : start + _LOCAL.size]
            if not header.startswith(b"PK\3\4") or len(header) < _LOCAL.size:
                _refuse(f"{_shown(member.filename)} is damaged; save the file again")
            fields = _LOCAL.unpack(header)
            if start + _LOCAL.size + fields[9] + fields[10] + member.compress_size > end:
                _refuse(f"{_shown(member.filename)} overlaps another member of the archive")


class ArchiveDocument:
    """Documents that are members of an archive."""

    def __init__(self, archive: Archive, members: Mapping[str, Document]) -> None:
        self._archive, self._members = archive, members

    @property
    def texts(self) -> Sequence[MarkedText]:
        """The texts of all members, one member after the other."""
        return [text for member in self._members.values() for text in member.texts]

    def write(self, translations: Sequence[MarkedText]) -> bytes:
        """Return the archive with these texts."""
        counts = [len(member.texts) for member in self._members.values()]
        if len(translations) != sum(counts):
            _refuse(f"the document has {sum(counts)} texts, but {len(translations)} are given")
        changes, start = {}, 0
        for (name, member), count in zip(self._members.items(), counts, strict=True):
            changes[name] = member.write(translations[start : start + count])
            start += count
        return self._archive.replace(changes)


def _check(member: ZipInfo) -> None:
    name = member.filename
    folders = name.rstrip("/").replace("\\", "/").split("/")
    if ".." in folders or folders[0] == "" or ":" in folders[0] or member.orig_filename != name:
        _refuse(f"the archive has a member outside of it: {_shown(name)}")
    if len(folders) > LEVELS:
        _refuse(f"{_shown(name)} is in more than {LEVELS} folders")
    if member.flag_bits & _ENCRYPTED:
        _refuse(f"{_shown(name)} is encrypted; save the file without a password")
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        _refuse(f"{_shown(name)} is compressed by an unusual method; save the file again")


def _changed(entry: bytes, record: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return the local entry and the central record of a member with other data."""
    local, central = list(_LOCAL.unpack_from(entry)), list(_CENTRAL.unpack_from(record))
    name, extra = _after(entry, _LOCAL.size, local[9:11])
    _, central_extra, comment = _after(record, _CENTRAL.size, central[10:13])
    packed = data
    if local[3] == ZIP_DEFLATED:
        compressor = zlib.compressobj(wbits=-15)
        packed = compressor.compress(data) + compressor.flush()
    if len(data) > _MOST:
        _refuse("the translated file would be larger than 4 GiB")
    extra, central_extra = _without_zip64(extra), _without_zip64(central_extra)
    local[2] &= ~_SIZES_FOLLOW
    central[3] &= ~_SIZES_FOLLOW
    local[6:9] = central[7:10] = zlib.crc32(data), len(packed), len(data)
    local[10], central[11] = len(extra), len(central_extra)
    return (
        _LOCAL.pack(*local) + name + extra + packed,
        _CENTRAL.pack(*central) + name + central_extra + comment,
    )


def _after(record: bytes, start: int, lengths: Sequence[int]) -> list[bytes]:
    """Return the fields of variable length that follow one another."""
    fields = []
    for length in lengths:
        fields.append(record[start : start + length])
        start += length
    return fields


def _without_zip64(extra: bytes) -> bytes:
    kept, position = b"", 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        field = extra[position : position + 4 + length]
        position += 4 + length
        kept += b"" if kind == 1 else field
    return kept + extra[position:]


def _shown(name: str) -> str:
    return repr(name[:100])


def _refuse(message: str) -> NoReturn:
    raise InputError(message)
