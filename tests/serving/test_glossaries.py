"""The file of clients' glossaries."""

import sqlite3
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.serving import glossaries
from outrider.serving.glossaries import Dictionary, GlossaryStore
from outrider.serving.request import RefusalError, UnknownError
from outrider.text.glossary import Entry

DOG = Dictionary("EN-GB", "pt-BR", (Entry("dog", "cão", True),))
CAT = Dictionary("en", "de", (Entry("cat", "Katze"),))


def test_glossaries_survive_the_server_and_belong_to_a_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.glossaries"
    store = GlossaryStore(path)
    made = store.create("ann", "animals", [DOG, CAT])
    assert (made.name, made.pairs) == ("animals", (("en", "de", 1), ("en", "pt", 1)))
    store.close()
    store = GlossaryStore(path)
    assert store.all("ann") == [made]
    assert store.read("ann", made.id, "en-US", "pt").entries == DOG.entries
    assert store.all("bob") == []
    for use in (store.get, store.delete):
        with pytest.raises(UnknownError, match="the glossary does not exist"):
            use("bob", made.id)
    with pytest.raises(UnknownError, match="no dictionary from en to fr"):
        store.read("ann", made.id, "en", "fr")
    store.delete("ann", made.id)
    assert store.all("ann") == []
    rows = store._file.execute("SELECT count(*) FROM dictionaries").fetchone()
    assert rows == (0,)


def test_dictionaries_are_replaced_merged_and_deleted() -> None:
    store = GlossaryStore()
    number = store.create("", "x", [CAT]).id
    more = CAT._replace(entries=(Entry("dog", "Hund"), Entry("cat", "Kater")))
    store.put("", number, more, merge=True)
    assert store.read("", number, "en", "de").entries == (
        Entry("cat", "Kater"),
        Entry("dog", "Hund"),
    )
    store.put("", number, CAT)
    assert store.read("", number, "en", "de").entries == CAT.entries
    store.put("", number, DOG, merge=True)
    store.rename("", number, "y")
    assert (store.get("", number).name, len(store.get("", number).pairs)) == ("y", 2)
    store.delete_dictionary("", number, "en", "de")
    assert store.get("", number).pairs == (("en", "pt", 1),)


def test_limits_and_other_files(tmp_path: Path, monkeypatch) -> None:
    store = GlossaryStore()
    monkeypatch.setattr(glossaries, "MOST", 1)
    store.create("", "x", [CAT])
    with pytest.raises(RefusalError, match="there are 1 glossaries; delete one"):
        store.create("", "y", [CAT])
    monkeypatch.setattr(glossaries, "MOST_BYTES", 10)
    with pytest.raises(RefusalError, match="may have 10 bytes"):
        store.create("other", "y", [CAT])
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be read as one\n" * 100)
    with pytest.raises(ConfigError, match="name another file"):
        GlossaryStore(text)
    other = tmp_path / "other"
    with sqlite3.connect(other) as file:
        file.execute("PRAGMA user_version = 7")
    with pytest.raises(ConfigError, match="is no file of glossaries"):
        GlossaryStore(other)
