"""Test an installed wheel: all instruction sets give the same results, also from a packed file.

Needs numpy only.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import outrider_native
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def random_model(vocab_size: int = 37, width: int = 24) -> tuple[dict[str, Any], Arrays]:
    """A model with one encoder layer and two decoder layers."""
    dice = np.random.default_rng(0)
    arrays: Arrays = {}

    def add(name: str, *shape: int) -> None:
        arrays[name] = dice.normal(0.0, 0.3, shape).astype(np.float32)

    def linear(name: str, columns: int, inputs: int) -> None:
        add(f"{name}.weight", columns, inputs)
        add(f"{name}.bias", columns)

    def norm(name: str) -> None:
        add(f"{name}.weight", width)
        add(f"{name}.bias", width)

    for stack, layers in (("encoder", 1), ("decoder", 2)):
        for block in (f"{stack}.blocks.{n}" for n in range(layers)):
            linear(f"{block}.attention.qkv", 3 * width, width)
            linear(f"{block}.attention.out", width, width)
            norm(f"{block}.attention_residual.norm")
            linear(f"{block}.feedforward.up", 40, width)
            linear(f"{block}.feedforward.down", width, 40)
            norm(f"{block}.feedforward_residual.norm")
            if stack == "decoder":
                linear(f"{block}.cross.q", width, width)
                linear(f"{block}.cross.kv", 2 * width, width)
                linear(f"{block}.cross.out", width, width)
                norm(f"{block}.cross_residual.norm")
    add("tokens.weight", vocab_size, width)
    shape = {
        "vocab_size": vocab_size,
        "width": width,
        "heads": 3,
        "kv_heads": 3,
        "head_width": width // 3,
        "inner": 40,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "max_positions": 64,
        "embedding_scale": math.sqrt(width),
        "shared_embeddings": True,
        "mixer": "attention",
        "position": "sinusoidal",
        "frequencies": [],
        "encoder_edges": [],
        "decoder_edges": [],
        "rms_norm": False,
        "norm_eps": 1e-5,
        "embedding_norm": False,
        "dtype": "int8",
        "pre_norm": False,
        "gated": False,
        "activation": "relu",
    }
    return shape, arrays


def build(
    shape: dict[str, Any], weights: Arrays | outrider_native.PackedFile, name: str
) -> outrider_native.Engine:
    return outrider_native.Engine(
        model=shape, weights=weights, drafter=None, ctc=None, instruction_set=name, threads=2
    )


def logits(engine: outrider_native.Engine) -> NDArray[np.float32]:
    state = engine.encode([[3, 4, 5], [6, 7]], [8, 8], False, False, [])
    return engine.extend(state, [[1, 2, 9], [8, 7, 6]], False)


def check_instruction_sets() -> None:
    shape, arrays = random_model()
    expected = logits(build(shape, arrays, "portable"))
    assert np.isfinite(expected).all()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "packed"
        build(shape, arrays, "portable").save(path, "about")
        for name in outrider_native.instruction_sets():
            assert np.array_equal(logits(build(shape, arrays, name)), expected), name
            file = outrider_native.PackedFile(path)
            assert file.about == "about"
            assert np.array_equal(logits(build(shape, file, name)), expected), f"{name}, mapped"
            del file  # otherwise Windows does not remove it
    print("same results with", ", ".join(outrider_native.instruction_sets()))


if __name__ == "__main__":
    check_instruction_sets()
