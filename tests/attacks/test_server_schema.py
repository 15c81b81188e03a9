"""Schemathesis on the server's OpenAPI schema: every response conforms to it."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import content_type_conformance, status_code_conformance

from outrider.serving.app import build_app
from outrider.serving.engine import Engine
from outrider.serving.limits import Limits
from outrider.serving.registry import read_spec
from tests.helpers.served import serving

CHECKS = [status_code_conformance, content_type_conformance]
REQUEST_LINE = 60_000
"""h11 closes the connection after a longer one; the client may not receive the response."""
EXAMPLES = int(os.environ.get("OUTRIDER_FUZZED", "1000")) // 25
"""Requests of each route and mode; there are about 25 routes."""
LIMITS = Limits(seconds=5, characters=2_000, new_tokens=32)


@pytest.fixture(scope="module")
def engine_models(translator: Path, language_model: Path) -> list[str]:
    return [f"en-de={translator}", str(language_model)]


@pytest.fixture(scope="module")
def url(engine_models: list[str]) -> Iterator[str]:
    with serving(Engine([read_spec(one) for one in engine_models], LIMITS)) as address:
        yield address


@pytest.fixture(scope="module")
def schema(engine_models: list[str], url: str) -> schemathesis.BaseSchema:
    app = build_app(Engine([read_spec(one) for one in engine_models], LIMITS))
    found = schemathesis.openapi.from_dict(app.openapi())
    found.config.update(base_url=url)
    return found


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_route_conforms_to_its_schema(url: str, schema, mode: str) -> None:
    wanted = schemathesis.GenerationMode(mode)
    operations = [one.ok() for one in schema.get_all_operations()]
    assert len(operations) > 12
    tried = 0
    for operation in operations:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=wanted))
        def attack(case: schemathesis.Case) -> None:
            nonlocal tried
            request = requests.Request(**case.as_transport_kwargs(base_url=url)).prepare()
            assume(len(request.url or "") < REQUEST_LINE)
            answer = case.call(timeout=20)
            tried += 1
            assert answer.status_code < 500 or answer.status_code == 503, answer.status_code
            case.validate_response(answer, checks=CHECKS)

        with suppress(Unsatisfiable):  # a route without parameters has no invalid request
            attack()
    assert tried > 5 * EXAMPLES
    assert httpx.get(f"{url}/health").status_code == 200
