"""The native core packs weights as they lie in a file: halves of either kind, mapped, unaligned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from native_answers import answers, parts, same

core = pytest.importorskip("outrider_native", reason="outrider-native is not installed")


def to_bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves, as they lie in a file."""
    return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(array: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (array.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("kind", ["marian", "learned", "gelu"])
def test_halves_are_what_they_are_as_float32(kind, dtype) -> None:
    given = parts(kind, dtype)
    brain = {name: to_bfloat16(array) for name, array in given["weights"].items()}
    wide = {name: from_bfloat16(array) for name, array in brain.items()}
    expected = answers(core.Model(**given | {"weights": wide}))
    assert same(answers(core.Model(**given | {"weights": brain})), expected)
    assert not same(answers(core.Model(**given)), expected), "halves must lose something"
    half = {name: array.astype(np.float16) for name, array in given["weights"].items()}
    wide = {name: array.astype(np.float32) for name, array in half.items()}
    found = answers(core.Model(**given | {"weights": half}))
    assert same(found, answers(core.Model(**given | {"weights": wide})))


def test_weights_may_be_mapped_read_only_and_unaligned(tmp_path: Path) -> None:
    given = parts("marian", "int8")
    expected = answers(core.Model(**given))
    mapped = {}
    for name, array in given["weights"].items():
        path = tmp_path / name
        path.write_bytes(b"!" + array.tobytes())
        mapped[name] = np.memmap(path, np.uint8, "r")[1:].view(np.float32).reshape(array.shape)
    assert same(answers(core.Model(**given | {"weights": mapped})), expected)


def test_embeddings_take_as_few_bytes_as_hold_them_exactly() -> None:
    given = parts("marian", "int8")
    tokens = given["weights"]["tokens.weight"]

    def embedding_bytes(array: NDArray[Any]) -> int:
        arrays = given["weights"] | {"tokens.weight": array}
        return int(core.Model(**given | {"weights": arrays}).embedding_bytes)

    assert embedding_bytes(tokens) == 4 * tokens.size
    assert embedding_bytes(to_bfloat16(tokens)) == 2 * tokens.size
    assert embedding_bytes(from_bfloat16(to_bfloat16(tokens))) == 2 * tokens.size
    assert embedding_bytes(tokens.astype(np.float16).astype(np.float32)) == 2 * tokens.size


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((37, 24)), "is not of float32, float16 or bfloat16"),
        (np.zeros((37, 24), np.int16), "is not of float32, float16 or bfloat16"),
        (np.zeros((24, 37), np.float32).T, "is not an array, or not in order"),
        (np.full((37, 24), 0x7F80, np.uint16), "holds numbers that are not finite"),
        (np.full((37, 24), np.nan, np.float16), "holds numbers that are not finite"),
        ([1.0], "is not an array"),
    ],
    ids=["float64", "int16", "transposed", "infinity", "nan", "list"],
)
def test_what_is_no_weight_is_named(array, message) -> None:
    given = parts("marian", "int8")
    with pytest.raises(ValueError, match=f"'tokens.weight' {message}"):
        core.Model(**given | {"weights": given["weights"] | {"tokens.weight": array}})
