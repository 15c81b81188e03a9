"""Languages of the served models: who translates what, and what they are called."""

from collections.abc import Iterable, Mapping

from outrider.serving.refusal import UnknownError
from outrider.serving.spec import Spec

__all__ = ["find_model", "list_languages"]

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
    """List the languages that can be read, each with those it can be translated to."""
    targets: dict[str, set[str]] = {}
    names: dict[str, str] = dict(_NAMES)
    for spec in specs:
        names |= spec.names
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
    for spec in specs.values():
        if spec.pair == (source, target):
            return spec
    for spec in specs.values():
        if target in spec.languages and (source in spec.languages or not spec.reads):
            return spec
    pairs = [f"{spec.pair[0]} to {spec.pair[1]}" for spec in specs.values() if spec.pair]
    many = [f"any of {len(spec.languages)} languages" for spec in specs.values() if spec.languages]
    message = f"cannot translate from {source[:20]!r} to {target[:20]!r}"
    there = ", ".join([*pairs, *many][:20])
    raise UnknownError(f"{message}; there is {there or 'no model that translates'}")
