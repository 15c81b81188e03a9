"""Concurrent, mixed and cancelled requests: every response equals the offline translation.

The suite sends few requests; `python lab/studies/serve_same_text.py` sends thousands.
"""

import pytest

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
