"""The native core packs weights as stored: half precision, int8 with scales, unaligned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.native_answers import answers, parts, same

core = pytest.importorskip("outrider_native", reason="outrider-native is not installed")


def to_bfloat16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper 16 bits of each float32."""
    return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(array: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (array.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("kind", ["marian", "learned", "gelu"])
def test_half_precision_equals_the_same_numbers_in_float32(kind, dtype) -> None:
    given = parts(kind, dtype)
    brain = {name: to_bfloat16(array) for name, array in given["weights"].items()}
    wide = {name: from_bfloat16(array) for name, array in brain.items()}
    expected = answers(core.Engine(**given | {"weights": wide}))
    assert same(answers(core.Engine(**given | {"weights": brain})), expected)
    assert not same(answers(core.Engine(**given)), expected), "halves must lose something"
    half = {name: array.astype(np.float16) for name, array in given["weights"].items()}
    wide = {name: array.astype(np.float32) for name, array in half.items()}
    found = answers(core.Engine(**given | {"weights": half}))
    assert same(found, answers(core.Engine(**given | {"weights": wide})))


def to_int8(array: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round as the core does: the largest absolute value of a row becomes 127."""
    largest = np.abs(array).max(axis=1)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
    return np.rint(array / scale[:, None]).astype(np.int8), scale


def from_int8(pair: tuple[NDArray[np.int8], NDArray[np.float32]]) -> NDArray[np.float32]:
    return pair[0] * pair[1][:, None]


@pytest.mark.parametrize("kind", ["marian", "learned", "gelu"])
def test_int8_weights_are_used_unchanged(kind, tmp_path: Path) -> None:
    given = parts(kind, "int8")
    head = "head.weight" if "head.weight" in given["weights"] else "tokens.weight"
    tables = {
        name for name in given["weights"] if name.endswith(("tokens.weight", ".table.weight"))
    }
    matrices = {
        name: to_int8(array)
        for name, array in given["weights"].items()
        if array.ndim == 2 and (".blocks." in name or name.endswith("head.weight"))
    }
    packed = core.Engine(**given | {"weights": given["weights"] | matrices})
    assert same(answers(packed), answers(core.Engine(**given)))
    quantised = {name: to_int8(given["weights"][name]) for name in tables}
    wide = {name: from_int8(pair) for name, pair in quantised.items()}
    wide["head.weight"] = to_int8(given["weights"][head])
    expected = answers(core.Engine(**given | {"weights": given["weights"] | wide}))
    model = core.Engine(**given | {"weights": given["weights"] | quantised})
    assert same(answers(model), expected)
    assert not same(expected, answers(packed)), "int8 must lose something"
    words, width = given["weights"]["tokens.weight"].shape
    assert model.embedding_bytes == (words * width + 4 * words) * (2 if kind == "learned" else 1)
    model.save(tmp_path / "packed", "")
    mapped = core.Engine(**given | {"weights": core.PackedFile(tmp_path / "packed")})
    assert same(answers(mapped), expected)


def test_int8_with_scales_equals_the_same_numbers_in_float32() -> None:
    given = parts("marian", "float32")
    pairs = {
        name: to_int8(array)
        for name, array in given["weights"].items()
        if name.endswith(".weight") and array.ndim == 2
    }
    wide = {name: from_int8(pair) for name, pair in pairs.items()}
    found = answers(core.Engine(**given | {"weights": given["weights"] | pairs}))
    assert same(found, answers(core.Engine(**given | {"weights": given["weights"] | wide})))


def test_weights_may_be_mapped_read_only_and_unaligned(tmp_path: Path) -> None:
    given = parts("marian", "int8")
    expected = answers(core.Engine(**given))
    mapped = {}
    for name, array in given["weights"].items():
        path = tmp_path / name
        path.write_bytes(b"!" + array.tobytes())
        mapped[name] = np.memmap(path, np.uint8, "r")[1:].view(np.float32).reshape(array.shape)
    assert same(answers(core.Engine(**given | {"weights": mapped})), expected)


def test_embeddings_use_the_smallest_exact_type() -> None:
    given = parts("marian", "int8")
    tokens = given["weights"]["tokens.weight"]

    def embedding_bytes(array: NDArray[Any]) -> int:
        arrays = given["weights"] | {"tokens.weight": array}
        return int(core.Engine(**given | {"weights": arrays}).embedding_bytes)

    assert embedding_bytes(tokens) == 4 * tokens.size
    assert embedding_bytes(to_bfloat16(tokens)) == 2 * tokens.size
    assert embedding_bytes(from_bfloat16(to_bfloat16(tokens))) == 2 * tokens.size
    assert embedding_bytes(tokens.astype(np.float16).astype(np.float32)) == 2 * tokens.size


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((37, 24)), "is not of float32, float16 or bfloat16"),
        (np.zeros((37, 24), np.int16), "is not of float32, float16 or bfloat16"),
        (np.zeros((24, 37), np.float32).T, "is not a contiguous array"),
        (np.full((37, 24), 0x7F80, np.uint16), "holds numbers that are not finite"),
        (np.full((37, 24), np.nan, np.float16), "holds numbers that are not finite"),
        ([1.0], "is not a contiguous array"),
        (np.zeros((37, 24), np.int8), "is not of float32, float16 or bfloat16"),
        ((np.zeros((37, 24), np.int8), [1.0]), "is not a contiguous array"),
        ((np.zeros((37, 24), np.int8), np.ones(36, np.float32)), "is not rows of int8"),
        ((np.zeros((37, 24), np.int8), np.ones(37)), "is not rows of int8"),
        ((np.zeros((37, 24), np.float32), np.ones(37, np.float32)), "is not rows of int8"),
        ((np.zeros(37, np.int8), np.ones(37, np.float32)), "is not rows of int8"),
        ((np.full((37, 24), -128, np.int8), np.ones(37, np.float32)), "holds -128"),
        (
            (np.ones((37, 24), np.int8), np.full(37, np.inf, np.float32)),
            "holds numbers that are not finite",
        ),
    ],
    ids=[
        "float64",
        "int16",
        "transposed",
        "infinity",
        "nan",
        "list",
        "no scales",
        "scales in a list",
        "a scale too few",
        "wide scales",
        "scaled floats",
        "no rows",
        "-128",
        "infinite scale",
    ],
)
def test_invalid_weights_are_named(array, message) -> None:
    given = parts("marian", "int8")
    with pytest.raises(ValueError, match=f"'tokens.weight' {message}"):
        core.Engine(**given | {"weights": given["weights"] | {"tokens.weight": array}})
