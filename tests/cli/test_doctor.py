"""`outrider doctor`: its report with and without the native core."""

import importlib
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider.backends import native
from outrider.backends.native import NativeBackend, NativeDrafts
from outrider.decoding.queries import Chosen, Logits
from outrider.runtime import doctor
from outrider.runtime import doctor as self_check
from outrider.runtime.doctor import SelfCheck
from tests.helpers import drafted

ROOT = Path(__file__).resolve().parents[2]
INSTALL = "is not installed: pip install ./native in a checkout"
SOUND = SelfCheck(float32_error=2e-6, differing=0, seconds=0.1)

Command = Callable[..., tuple[int, str, str]]

needs_core = pytest.mark.skipif(not native.is_installed(), reason="needs outrider-native")


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OUTRIDER_BACKEND", "OUTRIDER_ISA"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "outrider_native", None)


@pytest.fixture
def a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A working core with two instruction sets, on any machine."""
    monkeypatch.setattr(native, "fault", lambda: None)
    monkeypatch.setattr(native, "is_installed", lambda: True)
    monkeypatch.setattr(native, "instruction_sets", lambda: ["avx2", "portable"])
    monkeypatch.setattr(doctor, "check_native", lambda: SOUND)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafted.save_translator(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that the core does not compute."""
    folder = tmp_path_factory.mktemp("sliding")
    attention = {"kind": "sliding", "window": 3}
    return drafted.save_translator(folder, drafter=False, decoder_attention=attention)


def lines(printed: str) -> dict[str, str]:
    """Return the text after each name; the last of two lines with the same name."""
    found = [line.partition(" ")[::2] for line in printed.splitlines()]
    return {
        name if name != "native" else "native core": text.removeprefix("core").strip()
        for name, text in found
    }


# --- without a model ----------------------------------------------------------------------------


@pytest.mark.usefixtures("no_core")
def test_without_the_core_its_installation_is_named(command: Command) -> None:
    code, out, err = command("doctor")
    assert (code, err) == (0, "")
    said = lines(out)
    assert said["native core"] == INSTALL
    assert said["load"] == "backend torch in float32: the native core is not installed"
    assert said["OUTRIDER_ISA"] == said["OUTRIDER_BACKEND"] == "not set"
    assert {"outrider", "processor", "torch", *doctor.OPTIONAL} <= said.keys()
    assert "self-check" not in said


@pytest.mark.usefixtures("a_core")
def test_the_best_instruction_set_is_chosen(command: Command) -> None:
    code, out, _ = command("doctor")
    assert code == 0
    said = lines(out)
    assert said["native core"].endswith("computes with avx2 (of avx2, portable)")
    assert said["self-check"].startswith("ok (0.1 s): float32 within 2e-06 of numpy")
    assert said["load"] == "backend native in int8"


@pytest.mark.usefixtures("a_core")
def test_an_instruction_set_can_be_forced(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_ISA", "portable")
    code, out, _ = command("doctor")
    assert code == 0
    assert "computes with portable" in lines(out)["native core"]
    assert lines(out)["OUTRIDER_ISA"] == "portable"


@pytest.mark.usefixtures("a_core")
def test_an_unavailable_instruction_set_is_an_error(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_ISA", "mmx")
    code, out, err = command("doctor")
    wrong = "OUTRIDER_ISA: instruction set 'mmx' is unavailable; this machine has avx2, portable"
    assert code == 2
    assert err == f"outrider: {wrong}\n"  # once, although both the core and load raise it
    assert lines(out)["load"] == f"fails: {wrong}"


@pytest.mark.usefixtures("no_core")
def test_without_the_core_an_instruction_set_has_no_effect(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_ISA", "mmx")
    code, out, _ = command("doctor")
    assert code == 0
    assert lines(out)["OUTRIDER_ISA"] == "mmx (no effect without the native core)"


@pytest.mark.usefixtures("no_core")
@pytest.mark.parametrize(
    ("backend", "wrong"),
    [
        ("native", f"backend native: needs outrider-native, which {INSTALL}"),
        ("naitive", "OUTRIDER_BACKEND: unknown 'naitive' (did you mean 'native'?)"),
    ],
)
def test_an_unavailable_backend_is_an_error(
    command: Command, monkeypatch: pytest.MonkeyPatch, backend: str, wrong: str
) -> None:
    monkeypatch.setenv("OUTRIDER_BACKEND", backend)
    code, out, err = command("doctor")
    assert code == 2
    assert err.startswith(f"outrider: {wrong}")
    assert lines(out)["load"].startswith(f"fails: {wrong}")


@pytest.mark.usefixtures("a_core")
def test_torch_on_request(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_BACKEND", "torch")
    code, out, _ = command("doctor")
    assert code == 0
    assert lines(out)["load"] == "backend torch in float32: OUTRIDER_BACKEND requires it"


@pytest.mark.usefixtures("a_core")
@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (SelfCheck(0.3, 0, 0.1), "float32 logits are 3.0e-01 off those of numpy"),
        (SelfCheck(float("nan"), 0, 0.1), "float32 logits are nan off those of numpy"),
        (SelfCheck(0.0, 2, 0.1), "int8 tandem differs from int8 greedy on 2 of 5 texts"),
    ],
)
def test_a_core_with_wrong_results_is_detected(
    command: Command, monkeypatch: pytest.MonkeyPatch, check: SelfCheck, fault: str
) -> None:
    monkeypatch.setattr(doctor, "check_native", lambda: check)
    code, out, err = command("doctor")
    assert code == 2
    assert err == f"outrider: the native core computes wrong results on this machine: {fault}\n"
    assert lines(out)["self-check"] == f"failed: {fault}"


def test_a_core_that_does_not_load_is_named_with_its_reason(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "outrider_native"
    package.mkdir()
    (package / "__init__.py").write_text("from outrider_native import _core\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "outrider_native"]:
        monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.spec_from_file_location("damaged", native.__file__)
    assert spec is not None
    assert spec.loader is not None
    damaged = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(damaged)
    monkeypatch.setattr(native, "outrider_native", None)
    monkeypatch.setattr(native, "_fault", damaged._fault)
    code, out, err = command("doctor")
    assert code == 2
    assert "does not load (cannot import name '_core'" in lines(out)["native core"]
    assert "pip install --force-reinstall ./native in a checkout" in err
    assert lines(out)["load"] == "backend torch in float32: the native core does not load"


def test_named_extras_contain_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package, (extra, _) in doctor.OPTIONAL.items():
        assert any(line.startswith(package) for line in project["optional-dependencies"][extra])


def test_a_missing_package_is_named_with_its_extra(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    code, out, _ = command("doctor")
    assert code == 0
    wanted = "not installed: pip install 'outrider[plot]' for pictures"
    assert lines(out)["matplotlib"] == wanted


# --- with a model -------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_core")
def test_a_model_without_the_core(command: Command, plain: Path) -> None:
    code, out, err = command("doctor", plain)
    assert (code, err) == (0, "")
    said = lines(out)
    assert said["model"].startswith(f"{plain}: encoder-decoder, ")
    assert said["drafter"].endswith("MiB")
    assert said["ctc"] == "none"
    assert said["load"] == "backend torch in float32: the native core is not installed"
    assert said["native core"] == INSTALL


@pytest.mark.usefixtures("no_core")
def test_unsupported_parts_are_named_even_without_the_core(command: Command, sliding: Path) -> None:
    _, out, _ = command("doctor", sliding)
    assert lines(out)["native core"].startswith("does not compute decoder_attention: {")


@pytest.mark.usefixtures("a_core")
def test_a_model_the_core_does_not_compute(command: Command, sliding: Path) -> None:
    code, out, err = command("doctor", sliding)
    assert (code, err) == (0, "")
    assert lines(out)["drafter"] == "none"
    assert "the native core does not compute decoder_attention: {" in lines(out)["load"]


@pytest.mark.usefixtures("a_core")
def test_a_fallback_to_torch_is_reported_in_one_line(command: Command, sliding: Path) -> None:
    code, _, err = command("translate", "--model", sliding, "two men play")
    assert code == 0
    assert err == (
        "outrider: the native core does not compute decoder_attention: "
        "{'kind': 'sliding', 'window': 3}; decoding with torch in float32\n"
    )


def test_a_folder_without_a_model(command: Command, tmp_path: Path) -> None:
    code, out, err = command("doctor", tmp_path)
    assert code == 2
    wrong = f"{tmp_path}: is not a model folder, it has no config.json"
    assert err == f"outrider: {wrong}\n"
    assert lines(out)["model"] == f"{tmp_path} does not load: {wrong}"


def test_parameters_are_counted(plain: Path) -> None:
    from outrider.torch.models import load_model

    expected = sum(weight.numel() for weight in load_model(plain).parameters())
    found = doctor.examine(plain)["model"]
    assert found["weights"]["parameters"] == expected
    assert found["weights"]["bytes"] == (plain / "model.safetensors").stat().st_size


# --- JSON ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_core")
def test_json_to_a_file_and_to_stdout(command: Command, tmp_path: Path, plain: Path) -> None:
    path = tmp_path / "found.json"
    code, out, _ = command("doctor", plain, "--json", path)
    assert code == 0
    assert "native core" in out
    written = json.loads(path.read_text(encoding="utf-8"))
    code, out, _ = command("doctor", plain, "--json", "-")
    assert code == 0
    printed = json.loads(out)
    assert written.pop("date")
    assert written == printed
    assert printed["native"] == {"installed": False, "reason": INSTALL}
    assert printed["model"]["backend"] == "torch"
    assert printed["problems"] == []


# --- the real core ------------------------------------------------------------------------------


@needs_core
def test_the_installed_core_passes_the_self_check(command: Command) -> None:
    code, out, _ = command("doctor", "--json", "-")
    assert code == 0
    core = json.loads(out)["native"]
    assert core["instruction_set"] == native.instruction_sets()[0]
    assert core["check"]["fault"] is None
    assert core["check"]["float32_error"] < 1e-4


@needs_core
def test_a_model_the_core_computes(command: Command, plain: Path) -> None:
    code, out, _ = command("doctor", plain)
    assert code == 0
    wanted = f"backend native in int8 with {native.instruction_sets()[0]}"
    assert lines(out)["load"] == wanted


@needs_core
def test_the_self_check_detects_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that gives wrong logits and verifies drafts wrongly."""
    extend, verify = NativeBackend.extend, NativeDrafts.draft_and_verify

    def wrong_extend(self, tokens, state, ask, **options):  # type: ignore[no-untyped-def]
        found = extend(self, tokens, state, ask, **options)
        return np.roll(found, len(tokens[0]), -1) if isinstance(ask, Logits) else found

    def wrong_verify(self, *arguments, **options):  # type: ignore[no-untyped-def]
        found = verify(self, *arguments, **options)
        wrong = [[abs(token - 1) for token in row] for row in found.best.tokens]
        return found._replace(best=Chosen(wrong))

    monkeypatch.setattr(NativeBackend, "extend", wrong_extend)
    monkeypatch.setattr(NativeDrafts, "draft_and_verify", wrong_verify)
    found = self_check.check_native()
    assert found.float32_error > self_check.TOLERANCE
    assert found.differing > 0


@needs_core
def test_the_memory_of_a_model_and_of_a_row(command: Command, plain: Path) -> None:
    """The equation: keys and values of each layer, in float32."""
    from outrider.torch.models import load_model
    from outrider.torch.models.drafter import Drafter

    code, out, _ = command("doctor", plain, "--json", "-")
    assert code == 0
    memory = json.loads(out)["model"]["memory"]
    config, drafter = load_model(plain).config, Drafter.from_pretrained(plain / "drafter").config
    assert memory["embedding_bytes"] == 4 * config.vocab_size * config.hidden_size
    assert memory["packed_bytes"] > memory["embedding_bytes"]
    assert not memory["mapped"]
    token = config.decoder_layers * 2 * 4 * config.hidden_size
    assert memory["token_bytes"] == {"source": token, "target": token}
    guess = token + drafter.layers * 2 * 4 * config.hidden_size
    assert memory["drafting_token_bytes"] == {"source": guess, "target": guess}
    _, out, _ = command("doctor", plain)
    kib, more = (f"{count / 1024:.1f} KiB a" for count in (token, guess))
    assert "MiB of embeddings, of this process alone\n" in out
    assert (
        f" {kib} source token, {kib} target token; "
        f"with drafting {more} source token, {more} target token\n" in out
    )


@needs_core
def test_a_language_model_has_no_memory_for_a_source(command: Command, tmp_path: Path) -> None:
    drafted.save_language_model(tmp_path, drafter=False)
    code, out, _ = command("doctor", tmp_path, "--json", "-")
    assert code == 0
    memory = json.loads(out)["model"]["memory"]
    assert memory["token_bytes"]["source"] == 0
    assert memory["token_bytes"]["target"] > 0
    assert memory["drafting_token_bytes"] is None
