"""Safe reading of untrusted files, atomic writing of files and folders, locks, and object stores.

Errors are one sentence that names the file and what is left of it.
"""

from outrider.files.reading import (
    JsonFolder,
    Location,
    file_sha256,
    open_regular,
    parse_json,
    read_json,
    read_limited,
)
from outrider.files.store import (
    LocalFolder,
    Place,
    Store,
    as_place,
    check_on_disk,
    open_store,
)
from outrider.files.writing import (
    explained,
    flush,
    locked,
    publish,
    put,
    remove_leftovers,
    replacing,
    working_folder,
    write_bytes,
    write_json,
    write_text,
)

__all__ = [
    "JsonFolder",
    "LocalFolder",
    "Location",
    "Place",
    "Store",
    "as_place",
    "check_on_disk",
    "explained",
    "file_sha256",
    "flush",
    "locked",
    "open_regular",
    "open_store",
    "parse_json",
    "publish",
    "put",
    "read_json",
    "read_limited",
    "remove_leftovers",
    "replacing",
    "working_folder",
    "write_bytes",
    "write_json",
    "write_text",
]
