"""Averaged weights are the mean; checkpoints of different models are refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.errors import ModelError
from outrider.torch.training.run import average_weights


def checkpoint(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_equals_the_mean_of_every_tensor(tmp_path: Path) -> None:
    weights = torch.randn(3, 4, 5)
    folders = [checkpoint(tmp_path / str(n), w=weights[n].clone()) for n in range(3)]
    average = average_weights(folders)
    assert average["w"].dtype == torch.float32
    torch.testing.assert_close(average["w"], weights.double().mean(0).float(), rtol=0, atol=0)


def test_one_checkpoint_is_unchanged(tmp_path: Path) -> None:
    weight = torch.randn(4)
    average = average_weights([checkpoint(tmp_path / "a", w=weight)])
    assert torch.equal(average["w"], weight)


def test_integers_are_not_averaged(tmp_path: Path) -> None:
    folders = [checkpoint(tmp_path / str(n), steps=torch.tensor([n])) for n in range(2)]
    assert average_weights(folders)["steps"].tolist() == [0]


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", w=torch.ones(2))
    other = checkpoint(tmp_path / "other", v=torch.ones(2))
    with pytest.raises(ModelError, match=r"other: has other tensors than .*one"):
        average_weights([one, other])


def test_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors: no such file"):
        average_weights([tmp_path])
