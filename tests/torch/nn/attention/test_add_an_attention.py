"""The file in `docs/add-an-attention.md` passes the contract tests."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from outrider.errors import ConfigError
from outrider.torch.nn import attention
from outrider.torch.nn.attention import HeadShape, attention_kinds, build_attention, load_attention
from outrider_lab.bench.attention.scaling import scaling_options
from tests.helpers import tiny

KIND = "dilated"
RUN = """
import sys
import pytest
from outrider.torch.nn import attention

attention.__path__.append(sys.argv[1])
sys.exit(pytest.main(sys.argv[2:]))
"""


def example(repository: Path) -> str:
    """Return the file that the page lists."""
    page = (repository / "docs" / "add-an-attention.md").read_text(encoding="utf-8")
    assert f"`src/outrider/torch/nn/attention/{KIND}.py`" in page
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]


@pytest.fixture
def folder(repository: Path, tmp_path: Path) -> Path:
    """A folder that contains only the page's file."""
    (tmp_path / f"{KIND}.py").write_text(example(repository), encoding="utf-8")
    return tmp_path


@pytest.fixture
def installed(folder: Path) -> Iterator[None]:
    """Add that folder to the package path of this process."""
    attention.__path__.append(str(folder))
    yield
    attention.__path__.remove(str(folder))
    for file in folder.glob("*.py"):
        sys.modules.pop(f"{attention.__name__}.{file.stem}", None)
        vars(attention).pop(file.stem, None)


def test_the_pages_file_passes_the_contract(repository: Path, folder: Path) -> None:
    """The contract tests find the file by name and pass."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    contract = repository / "tests" / "torch" / "nn" / "attention" / "test_contract.py"
    options = ["-q", "-k", KIND, "-p", "no:cacheprovider", f"--rootdir={repository}", "-m", ""]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(contract), *options],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    passed = int(re.findall(r"(\d+) passed", done.stdout)[-1])
    assert passed >= 20, "decoders, caches, dtypes, costs and the rest, each at several lengths"


@pytest.mark.usefixtures("installed")
def test_it_works_in_every_config_and_is_measured() -> None:
    assert KIND in attention_kinds()
    model = tiny.seq2seq(decoder_attention={"kind": KIND, "stride": 2})
    source, target = torch.randint(4, tiny.VOCABULARY, (2, 2, 7)).unbind(0)
    logits = model(input_ids=source, decoder_input_ids=target).logits
    assert logits.isfinite().all()
    assert scaling_options(KIND, 4096) == {}, "unless it overrides `options_for`"
    with pytest.raises(ConfigError, match=r"'dilated' cannot be used in an encoder; use one of"):
        tiny.seq2seq(encoder_attention={"kind": KIND})


@pytest.mark.usefixtures("installed")
def test_a_helper_file_is_not_a_kind(folder: Path) -> None:
    (folder / "rotated.py").write_text(
        "from outrider.torch.nn.attention.sliding import Attention\n"
    )
    assert not {"rotated", "base", "tiled", "factored", "head_parts"} & set(attention_kinds())
    with pytest.raises(ConfigError, match=r"unknown 'rotated'.*expected one of .*'dilated'"):
        load_attention("rotated")
    with pytest.raises(ConfigError, match=r"x\.kind: unknown 'base'"):
        build_attention({"kind": "base"}, causal=True, shape=HeadShape(1, 1, 4), key="x")
