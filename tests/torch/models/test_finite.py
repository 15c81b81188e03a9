"""Both backends refuse weights with NaN or infinite values, in any family and type."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import outrider
from outrider.errors import ModelError, OutriderError
from tests.helpers import families
from tests.helpers.drafted import save_language_model, save_translator

pytest.importorskip("outrider_native", reason="outrider-native is not installed")

NAN, INFINITE = float("nan"), float("inf")
REFUSED = "holds NaN or infinite numbers; use a checkpoint without them"
NAMES = [name for name in families.FAMILIES if name != "mistral window"]
SIGNALLING = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)
CASES = {
    "NaN": (torch.float32, NAN),
    "infinite": (torch.float32, -INFINITE),
    "signalling": (torch.float32, SIGNALLING),
    "float16": (torch.float16, INFINITE),
    "bfloat16": (torch.bfloat16, NAN),
    "float64": (torch.float64, 1e300),
}


def damage(path: Path, place: int, dtype: torch.dtype, value: float | torch.Tensor) -> None:
    """Put a value into one floating-point weight and store all weights as `dtype`."""
    weights = {
        name: weight.to(dtype) if weight.is_floating_point() else weight
        for name, weight in load_file(path).items()
    }
    names = [name for name in sorted(weights) if weights[name].is_floating_point()]
    chosen = weights[names[place % len(names)]]
    chosen.view(-1)[place % chosen.numel()] = value
    save_file(weights, path)


@pytest.mark.parametrize("name", NAMES)
def test_every_family(name: str, tmp_path: Path) -> None:
    folder = families.save(families.make(name), tmp_path, after="</s>")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    outrider.load(folder, backend="native")
    for place, (dtype, value) in enumerate(CASES.values()):
        path.write_bytes(whole)
        damage(path, 7 * place + len(name), dtype, value)
        for backend in ("native", "torch"):
            with pytest.raises(ModelError, match=REFUSED):
                outrider.load(folder, backend=backend)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("part", [".", "drafter", "ctc"])
@pytest.mark.parametrize("case", CASES)
def test_every_part(part: str, case: str, backend: str, tmp_path: Path) -> None:
    folder = save_translator(tmp_path, ctc=True)
    damage(folder / part / "model.safetensors", 5, *CASES[case])
    with pytest.raises(ModelError, match=REFUSED):
        outrider.load(folder, backend=backend)


def test_a_product_that_overflows(tmp_path: Path) -> None:
    """The weights are finite, but the drafter's tables, which are products of them, are not."""
    folder = save_language_model(tmp_path)
    path = folder / "drafter" / "model.safetensors"
    weights = load_file(path)
    weights["from_token.weight"].fill_(3e38)
    save_file(weights, path)
    with pytest.raises(OutriderError, match="holds numbers that are not finite"):
        outrider.load(folder, backend="native")
