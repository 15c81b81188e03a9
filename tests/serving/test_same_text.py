"""Concurrent, mixed and cancelled requests: every response equals the offline translation.

The suite sends few requests; `python lab/studies/serve_same_text.py` sends thousands.
"""

import pytest

from outrider.serving.registry import read_spec
from tests.helpers import all_apis
from tests.helpers.same_text import Outcome, play


@pytest.mark.parametrize("backend", [pytest.param("torch", marks=pytest.mark.slow), "native"])
def test_every_response_equals_the_offline_translation(serve, translator, writer, backend) -> None:
    if backend == "native":
        pytest.importorskip("outrider_native")
    place = {"backend": backend}
    url = serve(f"en-de={translator}", writer, load_options=place)
    outcome: Outcome = play(
        url, translator, writer, place=place, requests=96, clients=16, quit_share=0.15, seed=1
    )
    assert outcome.different == []
    assert outcome.answered + outcome.quit == 96
    assert outcome.quit >= 5
    assert outcome.answered >= 60


def test_all_apis_at_once_with_loads_and_unloads(serve, translator, onward) -> None:
    pytest.importorskip("outrider_native")
    models = {"de-en": translator, "en-pt": onward, "fr-en": onward, "en-es": translator}
    memory = 2 * max(read_spec(str(path)).weights for path in models.values())
    url = serve(*(f"{name}={path}" for name, path in models.items()), memory=memory, idle=0.2)
    outcome = all_apis.play(url, models, 100, clients=16, seed=1)
    assert outcome.different == []
    assert outcome.answered.keys() == all_apis.APIS.keys()
    assert outcome.pivoted >= 15
    assert outcome.unloads >= 4
