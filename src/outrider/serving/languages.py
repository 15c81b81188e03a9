"""Languages of the served models: who translates what, and what they are called."""

from collections.abc import Iterable, Mapping

from outrider.errors import ConfigError
from outrider.serving.refusal import UnknownError
from outrider.serving.spec import Spec

__all__ = ["AUTO", "cannot_translate", "find_model", "list_languages"]

AUTO = "auto"
"""A source to be detected, the only target there is, or a language that is unknown."""

_NAMES = dict(
    line.split(maxsplit=1)
    for line in """
ar Arabic
az Azerbaijani
bg Bulgarian
bn Bengali
ca Catalan
cs Czech
da Danish
de German
el Greek
en English
eo Esperanto
es Spanish
et Estonian
eu Basque
fa Persian
fi Finnish
fr French
ga Irish
gl Galician
he Hebrew
hi Hindi
hr Croatian
hu Hungarian
hy Armenian
id Indonesian
is Icelandic
it Italian
ja Japanese
ka Georgian
kk Kazakh
ko Korean
lt Lithuanian
lv Latvian
mk Macedonian
ms Malay
nb Norwegian Bokmål
nl Dutch
pl Polish
pt Portuguese
ro Romanian
ru Russian
sk Slovak
sl Slovenian
sq Albanian
sr Serbian
sv Swedish
sw Swahili
ta Tamil
th Thai
tl Tagalog
tr Turkish
uk Ukrainian
ur Urdu
vi Vietnamese
zh Chinese
""".strip().splitlines()
)


def list_languages(specs: Iterable[Spec]) -> list[dict[str, object]]:
    """List the languages that can be read, each with those it can be translated to.

    A model whose languages are unknown reads and writes `auto`.
    """
    targets: dict[str, set[str]] = {}
    names: dict[str, str] = dict(_NAMES)
    names[AUTO] = "Unknown"
    for spec in specs:
        names |= spec.names
        if spec.unknown:
            targets[AUTO] = {AUTO}
        if spec.pair is not None:
            targets.setdefault(spec.pair[0], set()).add(spec.pair[1])
        for source in spec.languages:
            targets.setdefault(source, set()).update({*spec.languages} - {source})
    return [
        {"code": source, "name": names.get(source, source), "targets": sorted(targets[source])}
        for source in sorted(targets)
    ]


def find_model(specs: Mapping[str, Spec], source: str, target: str) -> Spec:
    """Return the first model that translates from one language to another."""
    if target == AUTO:
        return _find_only(specs, source)
    for spec in specs.values():
        if spec.pair == (source, target):
            return spec
    for spec in specs.values():
        if target in spec.languages and (source in spec.languages or not spec.reads):
            return spec
    raise cannot_translate(specs, source, target)


def _find_only(specs: Mapping[str, Spec], source: str) -> Spec:
    """Return the only model that needs no target and reads a language, which may be unknown."""
    found = [spec for spec in specs.values() if not spec.writes]
    if source != AUTO:
        found = [spec for spec in found if spec.pair and spec.pair[0] == source]
    elif any(spec.unknown for spec in found):  # others are asked for by their languages
        found = [spec for spec in found if spec.unknown]
    if len(found) == 1 and not found[0].languages:
        return found[0]
    raise ConfigError("target", f"name the language to write; {_say_known(specs)}")


def cannot_translate(specs: Mapping[str, Spec], source: str, target: str) -> UnknownError:
    """Return the refusal of languages that no model translates between."""
    message = f"cannot translate from {source[:20]!r} to {target[:20]!r}"
    return UnknownError(f"{message}; {_say_known(specs)}")


def _say_known(specs: Mapping[str, Spec]) -> str:
    pairs = [f"{spec.pair[0]} to {spec.pair[1]}" for spec in specs.values() if spec.pair]
    many = [f"any of {len(spec.languages)} languages" for spec in specs.values() if spec.languages]
    unknown = [spec.name for spec in specs.values() if spec.unknown]
    there = f"there is {', '.join([*pairs, *many][:20]) or 'no model of known languages'}"
    if not unknown:
        return there
    named = f"{unknown[0]}, start the server with en-de=FOLDER"
    if len(unknown) == 1:
        named = f"{unknown[0]}, leave out source and target, or start the server with en-de=FOLDER"
    return f"{there}; for {named}"
