"""Members of Office Open XML packages (.docx, .pptx, .xlsx), by their content types."""

import re
from collections.abc import Sequence

from outrider.documents.archive import Archive
from outrider.documents.xml import elements, source
from outrider.errors import InputError

_TYPES = "[Content_Types].xml"
_NAMESPACE = {"http://schemas.openxmlformats.org/package/2006/content-types": "t"}
_KIND = re.compile(r"application/vnd\.(?:openxmlformats-officedocument|ms-\w+)[.-](.*)\+xml")
_NUMBER = re.compile(r"(\d+)")


def members(archive: Archive, kinds: Sequence[str]) -> list[str]:
    """Return the members of these kinds: ordered by kind, then by the numbers in their names."""
    if _TYPES not in archive.names:
        raise InputError(f"the file has no {_TYPES}; it is damaged or no office file")
    types = source(_TYPES, archive.read(_TYPES))
    found: dict[str, int] = {}
    for entry in elements(types, ("t:Override",), _NAMESPACE):
        kind = _KIND.fullmatch(entry.attributes.get("ContentType", ""))
        name = entry.attributes.get("PartName", "").removeprefix("/")
        last = next((i for i, one in enumerate(kinds) if kind and kind[1].endswith(one)), None)
        if last is not None and name in archive.names:
            found[name] = last
    if not found:
        raise InputError(f"the file has no {kinds[0]} part; it is of another format")

    def place(name: str) -> tuple[int, list[str | int]]:
        words: list[str | int] = [*_NUMBER.split(name)]
        return found[name], [int(word) if i % 2 else word for i, word in enumerate(words)]

    return sorted(found, key=place)
