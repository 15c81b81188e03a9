"""Glossaries of DeepL's API, through its published client and raw requests."""

from pathlib import Path

import httpx
import pytest

from outrider.files.hub import demo_folder
from outrider.serving.keys import Keyring, add_key
from outrider.text.glossary import Entry, Glossary

deepl = pytest.importorskip("deepl", reason="needs deepl, of outrider[dev]")

TERMS = {"committee": "comissão", "dog": "cachorro"}
TEXT = "The dog sees the committee."
OBEYED = "O cachorro vê a comissão."


@pytest.fixture(scope="module")
def pair() -> str:
    """Firefox's English-Portuguese model, of the extra `demo`."""
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    folder = demo_folder("en", "pt")
    if folder is None:
        pytest.skip("pip install 'outrider[demo]' to test it")
    return f"en-pt={folder}"


def client(url: str, key: str = "none"):
    return deepl.DeepLClient(key, server_url=url)


def test_glossaries_of_one_pair(serve, pair) -> None:
    dear = client(serve(pair))
    made = dear.create_glossary("terms", "EN", "PT-BR", TERMS)
    assert (made.name, made.source_lang, made.target_lang) == ("terms", "EN", "PT")
    assert (made.entry_count, made.ready) == (2, True)
    assert [one.glossary_id for one in dear.list_glossaries()] == [made.glossary_id]
    assert dear.get_glossary(made.glossary_id).creation_time == made.creation_time
    assert dear.get_glossary_entries(made) == TERMS
    found = dear.translate_text(TEXT, source_lang="EN", target_lang="PT-BR", glossary=made)
    assert found.text == OBEYED
    plain = dear.translate_text(TEXT, source_lang="EN", target_lang="PT-BR")
    assert plain.text == "O cão vê o comitê."
    (languages,) = dear.get_glossary_languages()
    assert (languages.source_lang, languages.target_lang) == ("en", "pt")
    dear.delete_glossary(made)
    with pytest.raises(deepl.GlossaryNotFoundException):
        dear.get_glossary(made.glossary_id)
    with pytest.raises(deepl.DeepLException, match="does not exist"):
        dear.translate_text(TEXT, source_lang="EN", target_lang="PT-BR", glossary=made)


def test_glossaries_of_several_pairs(serve, pair) -> None:
    dear = client(serve(pair))
    entries = deepl.api_data.MultilingualGlossaryDictionaryEntries

    made = dear.create_multilingual_glossary(
        "terms", [entries("EN", "PT", {"dog": "cachorro"}), entries("EN", "DE", {"dog": "Hund"})]
    )
    pairs = {(one.source_lang, one.target_lang): one.entry_count for one in made.dictionaries}
    assert {tuple(map(str.lower, codes)): count for codes, count in pairs.items()} == {
        ("en", "de"): 1,
        ("en", "pt"): 1,
    }
    dear.update_multilingual_glossary_dictionary(
        made, entries("EN", "PT", {"committee": "comissão"})
    )
    found = dear.get_multilingual_glossary_entries(made, "EN", "PT")
    assert found.dictionaries[0].entries == "dog\tcachorro\ncommittee\tcomissão"
    text = dear.translate_text(
        TEXT, source_lang="EN", target_lang="PT-BR", glossary=made.glossary_id
    ).text
    assert text == OBEYED
    dear.replace_multilingual_glossary_dictionary(made, entries("EN", "PT", {"dog": "cão"}))
    dear.update_multilingual_glossary_name(made, "animals")
    dear.delete_multilingual_glossary_dictionary(made, source_lang="EN", target_lang="DE")
    (left,) = dear.list_multilingual_glossaries()
    assert (left.name, [one.entry_count for one in left.dictionaries]) == ("animals", [1])
    dear.delete_multilingual_glossary(made)
    assert dear.list_multilingual_glossaries() == []


def test_a_glossary_belongs_to_its_key_and_survives_the_server(serve, pair, tmp_path: Path) -> None:
    keys, file = tmp_path / "keys", tmp_path / "terms"
    secrets = [add_key(keys, name, rate=None, priority="normal") for name in ("ann", "bob")]
    url = serve(pair, keyring=Keyring(keys), glossaries=file)
    made = client(url, secrets[0]).create_glossary("terms", "EN", "PT", TERMS)
    assert client(url, secrets[1]).list_glossaries() == []
    with pytest.raises(deepl.AuthorizationException):
        client(url, "wrong").list_glossaries()
    again = serve(pair, keyring=Keyring(keys), glossaries=file)
    assert client(again, secrets[0]).get_glossary_entries(made) == TERMS


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"entries": "a"}, "Invalid glossary entries provided: entries: line 1: expected source"),
        ({"entries": ""}, "Invalid glossary entries provided: there are none"),
        ({"entries": "a,b,", "entries_format": "csv", "name": ""}, "name"),
        ({"entries": 'a,"b', "entries_format": "csv"}, "is not CSV"),
    ],
)
def test_bad_entries_are_refused(url, body, message) -> None:
    given = {"name": "x", "source_lang": "en", "target_lang": "de"} | body
    answer = httpx.post(f"{url}/v2/glossaries", json=given)
    assert answer.status_code == 400
    assert message in answer.json()["message"]


def test_terms_of_the_server_are_for_every_client(serve, pair) -> None:
    terms = {("en", "pt"): Glossary([Entry(*pair) for pair in TERMS.items()])}
    url = serve(pair, terms=terms)
    body = {"q": TEXT, "source": "en", "target": "pt"}
    assert httpx.post(f"{url}/translate", json=body).json() == {"translatedText": OBEYED}
    html = body | {"q": "<p>The <b>dog</b> sees the committee.</p>", "format": "html"}
    answer = httpx.post(f"{url}/translate", json=html).json()["translatedText"]
    assert "cachorro" in answer
