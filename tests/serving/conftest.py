"""Tiny models behind real servers on loopback."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.runtime import Translator
from outrider.serving.engine import Engine
from outrider.serving.keys import Keyring, add_key
from outrider.serving.limits import Limits
from outrider.serving.registry import read_spec
from tests.helpers import drafted
from tests.helpers.served import serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every part: drafter and CTC decoder."""
    return drafted.save_translator(tmp_path_factory.mktemp("serving") / "tiny", ctc=True)


@pytest.fixture(scope="session")
def onward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second model with other weights, without a drafter."""
    folder = tmp_path_factory.mktemp("serving") / "onward"
    return drafted.save_translator(folder, drafter=False, seed=7)


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with a drafter."""
    return drafted.save_language_model(tmp_path_factory.mktemp("serving") / "text")


@pytest.fixture(scope="session")
def offline(translator: Path) -> Translator:
    """The same model, without a server."""
    loaded = outrider.load(translator)
    assert isinstance(loaded, Translator)
    return loaded


@pytest.fixture(scope="session")
def demo() -> Translator:
    """`demo/en-de` with the native core."""
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    loaded = outrider.load(ROOT / "demo" / "en-de", backend="native")
    assert isinstance(loaded, Translator)
    return loaded


@pytest.fixture(scope="session")
def url(translator: Path) -> Iterator[str]:
    """A server shared by tests that do not change its state."""
    engine = Engine([read_spec(f"en-de={translator}")], Limits(characters=20_000))
    with serving(engine) as address:
        yield address


APP = "load", "keyring", "origins", "guard", "terms", "glossaries"
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve models until the end of the test: `serve(folder, ..., limits=..., idle=...)`."""
    with ExitStack() as stack:

        def start(*models: object, limits: Limits | None = None, **given: Any) -> str:
            app = {key: given.pop(key) for key in APP if key in given}
            engine = Engine([read_spec(str(model)) for model in models], limits, **given)
            return stack.enter_context(serving(engine, **app))

        yield start


@pytest.fixture(scope="session")
def locked_with_key(
    translator: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Address and key of a server that requires one."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    key = add_key(path, "alice", rate=None, priority="normal")
    with serving(Engine([read_spec(f"en-de={translator}")]), keyring=Keyring(path)) as url:
        yield url, key
