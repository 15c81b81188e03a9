"""Choice of the backend: as requested, else the native core, else PyTorch with a warning."""

import warnings

import pytest

from outrider.backends import native
from outrider.errors import ConfigError, FallbackWarning, ModelError
from outrider.runtime import load
from outrider.runtime.backend import VARIABLE, BackendChoice, build_backend, choose_backend
from outrider.torch.backend import TorchBackend
from outrider.torch.models.folder import parts_of
from tests.helpers import drafted, native_tiny, tiny

CPU, META = "cpu", "meta"
needs_core = pytest.mark.skipif(
    not native.is_installed(), reason="outrider-native is not installed"
)


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch) -> None:
    """Unset the environment variable with which other tests select torch."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(native.INSTRUCTION_SET, raising=False)


@pytest.fixture(params=[True, False], ids=["installed", "absent"])
def installed(request, monkeypatch) -> bool:
    monkeypatch.setattr(native, "is_installed", lambda: request.param)
    monkeypatch.setattr(native, "fault", lambda: None if request.param else "is not installed: X")
    return request.param


def test_the_default_is_the_native_core_if_installed(installed) -> None:
    expected = (
        BackendChoice(True, "int8", False) if installed else BackendChoice(False, "float32", False)
    )
    assert choose_backend(None, None, CPU) == expected
    assert choose_backend("auto", None, CPU) == expected
    assert choose_backend(None, None, META) == BackendChoice(False, "float32", False, META)


def test_a_float_dtype_selects_torch(installed) -> None:
    for dtype in ("bfloat16", "float16", "float32"):
        assert choose_backend(None, dtype, CPU) == BackendChoice(False, dtype, False)


def test_backend_torch_is_selected_on_request(installed) -> None:
    assert choose_backend("torch", None, CPU) == BackendChoice(False, "float32", True)
    assert choose_backend("torch", "bfloat16", META) == BackendChoice(False, "bfloat16", True, META)
    with pytest.raises(ConfigError, match=r"^dtype: int8 is for backend native; torch computes"):
        choose_backend("torch", "int8", CPU)


@pytest.mark.parametrize("backend", ["native", None])
def test_backend_native_or_int8_requires_the_core(installed, backend) -> None:
    dtype = None if backend else "int8"
    if installed:
        assert choose_backend(backend, dtype, CPU) == BackendChoice(True, "int8", True)
        return
    message = r"^backend native: needs outrider-native, which is not installed"
    with pytest.raises(ConfigError, match=message):
        choose_backend(backend, dtype, CPU)


def test_unsupported_options_of_the_native_core_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(native, "fault", lambda: None)
    assert choose_backend("native", "float32", CPU) == BackendChoice(True, "float32", True)
    with pytest.raises(ConfigError, match=r"^device: backend native computes on a CPU, not"):
        choose_backend("native", None, META)
    message = r"^dtype: got 'bfloat16'; backend native computes in int8 or float32"
    with pytest.raises(ConfigError, match=message):
        choose_backend("native", "bfloat16", CPU)


def test_the_environment_variable_sets_the_default(installed, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "torch")
    assert choose_backend(None, None, CPU) == BackendChoice(False, "float32", True)
    if installed:
        assert choose_backend("native", None, CPU).native
    monkeypatch.setenv(VARIABLE, "abacus")
    with pytest.raises(ConfigError, match=r"^OUTRIDER_BACKEND: unknown 'abacus'; expected one of"):
        choose_backend(None, None, CPU)


def test_unknown_values_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^backend: unknown 'nativ' \(did you mean 'native'\?\)"):
        choose_backend("nativ", None, CPU)
    with pytest.raises(ConfigError, match=r"^dtype: got 'int3', expected one of float32, .*int8"):
        choose_backend(None, "int3", CPU)


def test_a_default_backend_falls_back_with_a_warning() -> None:
    model = tiny.seq2seq(position="alibi")
    message = "the native core does not compute position: alibi; decoding with torch in float32"
    with pytest.warns(FallbackWarning, match=message):
        backend = build_backend(BackendChoice(True, "int8", False), parts_of(model))
    assert isinstance(backend, TorchBackend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(
            build_backend(BackendChoice(False, "float32", False), parts_of(model)), TorchBackend
        )


@needs_core
def test_a_requested_backend_does_not_fall_back() -> None:
    model = tiny.seq2seq(position="alibi")
    with pytest.raises(ModelError, match="does not compute position: alibi; use backend torch"):
        build_backend(BackendChoice(True, "int8", True), parts_of(model))


@needs_core
def test_the_native_core_gets_all_parts_and_the_threads() -> None:
    model = native_tiny.build("marian")
    parts = {"drafter": native_tiny.build_drafter(model), "ctc": native_tiny.build_ctc(model)}
    backend = build_backend(
        BackendChoice(True, "float32", True), parts_of(model, **parts), threads=2
    )
    assert isinstance(backend, native.NativeBackend)
    assert (backend.dtype, backend.core.threads) == ("float32", 2)
    assert (backend.slots is not None, backend.drafts.longest) == (True, 8)


@needs_core
def test_a_folder_is_loaded_for_the_core(tmp_path) -> None:
    folder = drafted.save_translator(tmp_path, ctc=True)
    exact = load(folder, device="cpu", backend="native", dtype="float32")
    usual, asked = load(folder, device="cpu"), load(folder, device="cpu", dtype="int8")
    plain = load(folder, device="cpu", backend="torch")
    assert [one.backend.dtype for one in (exact, usual, asked)] == ["float32", "int8", "int8"]
    assert isinstance(plain.backend, TorchBackend)
    texts = ["two men play", "a small dog runs. it is late", "where?"]
    assert exact.translate(texts) == plain.translate(texts)
    assert usual.translate(texts) == asked.translate(texts)
    for translator in (exact, usual):
        expected = translator.translate(texts)
        assert translator.translate(texts, mode="tandem") == expected
        assert [translator.translate(text) for text in texts] == expected
    assert exact.translate(texts, mode="parallel") == plain.translate(texts, mode="parallel")


@needs_core
def test_a_language_model_is_loaded_for_the_core(tmp_path) -> None:
    folder = drafted.save_language_model(tmp_path)
    exact = load(folder, device="cpu", backend="native", dtype="float32")
    plain = load(folder, device="cpu", backend="torch")
    options = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12}
    prompts = ["two ", "a small dog", ""]
    assert exact.generate(prompts, **options) == plain.generate(prompts, **options)
    usual = load(folder, device="cpu")
    assert usual.backend.dtype == "int8"
    expected = usual.generate(prompts, max_new_tokens=12)
    assert usual.generate(prompts, max_new_tokens=12, mode="tandem") == expected


@needs_core
def test_an_unsupported_folder_is_loaded_with_a_warning(tmp_path) -> None:
    folder = drafted.save_translator(tmp_path, drafter=False, position="alibi")
    with pytest.warns(FallbackWarning, match="does not compute position: alibi") as seen:
        translator = load(folder, device="cpu")
    assert isinstance(translator.backend, TorchBackend)
    assert seen[0].filename == __file__  # the warning points at the caller
    with pytest.raises(ModelError, match="use backend torch"):
        load(folder, device="cpu", backend="native")
