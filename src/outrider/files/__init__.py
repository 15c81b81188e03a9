"""Files: reading those that may be hostile, writing those that must not be lost.

`read_json` (`read_json_list` for a list) is the one reader of JSON; `replacing`, `write_text`,
`write_bytes` and `write_json` are the one way to write a file, `working_folder` and `publish` the
one way to write a folder; `locked` is the one lock.
`open_store` is a folder on a disk or in a store.
Whatever is wrong becomes one sentence that names the file and what is left of it.
"""

from outrider.files.lock import locked
from outrider.files.reading import (
    file_sha256,
    open_regular,
    parse_json,
    read_json,
    read_json_list,
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
    "LocalFolder",
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
    "read_json_list",
    "read_limited",
    "remove_leftovers",
    "replacing",
    "working_folder",
    "write_bytes",
    "write_json",
    "write_text",
]
