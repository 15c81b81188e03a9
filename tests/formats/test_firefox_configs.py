"""Every configuration of Firefox's models is read and translates with random weights."""

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from outrider.backends.native import NativeBackend
from outrider.decoding.queries import Logits
from outrider.formats.folder import Parts, read_model
from outrider.formats.readers.bergamot import EOS, read_shortlist
from outrider.runtime import Translator, load
from tests.helpers import bergamot_tiny as tiny

Config = dict[str, Any]

PUBLISHED = json.loads(Path(__file__).with_name("firefox_configs.json").read_text("utf-8"))
CONFIGS: list[Config] = [
    {**PUBLISHED["common"], **variant["config"], "version": version}
    for variant in PUBLISHED["variants"]
    for version in variant["versions"]
]
SHAPE = ("dim-emb", "dec-depth", "transformer-dim-ffn", "dim-vocabs", "tied-embeddings-all")
SHAPES = list({str([one[key] for key in SHAPE]): one for one in CONFIGS}.values())
SMALL = {
    "dim-emb": tiny.TINY.width,
    "transformer-heads": tiny.TINY.heads,
    "transformer-dim-ffn": tiny.TINY.inner,
    "dim-vocabs": [200, 200],
}
LEX, SENTENCE, STEPS = "lex.50.50.xxyy.s2t.bin", "a bird sings in the tree", 4


def name(config: Config) -> str:
    vocabularies = "one" if config["tied-embeddings-all"] else "two"
    return "-".join(str(config[key]) for key in SHAPE[:3]) + f"-{vocabularies}"


def vocabulary(words: int, piece: str) -> bytes:
    """Return a SentencePiece model of `words` pieces; only the first occur in the sentence."""
    model = tiny.pieces(tiny.TEXT)
    first = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    parts = [model]
    for number in range(first, words):  # items of a repeated field may be appended
        text = f"{piece}{number}".encode()
        item = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", -99.0)
        parts.append(b"\x0a" + bytes([len(item)]) + item)
    return b"".join(parts)


def write_folder(folder: Path, config: Config, sizes: tiny.Sizes) -> tiny.Arrays:
    """Write the files of a Firefox model; return the float32 weights that they represent."""
    words, shared = config["dim-vocabs"][0], config["tied-embeddings-all"]
    items, meant = tiny.to_int8(tiny.arrays(words, shared=shared, sizes=sizes))
    rows = [f"{key}: {json.dumps(value)}\n" for key, value in config.items() if key != "version"]
    text = "".join([*rows, f"version: {config['version']} \n"])
    (folder / "model.xxyy.intgemm.alphas.bin").write_bytes(tiny.binary(items, text))
    for side in ["vocab"] if shared else ["srcvocab", "trgvocab"]:
        (folder / f"{side}.xxyy.spm").write_bytes(vocabulary(words, side))
    tiny.write_shortlist(folder / LEX, words, frequent=50)
    return meant


@pytest.mark.parametrize(
    "config",
    [
        *(pytest.param(one | SMALL, id=f"{one['version'][:6]}-{name(one)}") for one in CONFIGS),
        *(pytest.param(one, id=f"full-{name(one)}", marks=pytest.mark.slow) for one in SHAPES),
    ],
)
def test_random_weights_of_a_configuration_translate(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    words, shared = config["dim-vocabs"][0], config["tied-embeddings-all"]
    sizes = tiny.Sizes(
        width=config["dim-emb"],
        heads=config["transformer-heads"],
        inner=config["transformer-dim-ffn"],
        encoder_layers=config["enc-depth"],
        decoder_layers=config["dec-depth"],
        gain=1.5,
    )
    weights = write_folder(tmp_path, config, sizes)
    model = load(tmp_path, backend="native")
    assert isinstance(model, Translator)
    source = [*model.tokenizer.encode(SENTENCE), EOS]
    target = [7, words - 1, 11, words // 2]
    core = NativeBackend(Parts(read_model(tmp_path)), dtype="float32")
    state = core.encode([source], capacity=len(target) + 1)
    found = core.extend([[words, *target]], state, Logits())[0]
    expected = tiny.equations(weights, source, target, sizes)
    np.testing.assert_allclose(found[:, :words], expected, atol=1e-3, rtol=1e-3)
    lists = read_shortlist(tmp_path / LEX, vocab_size=words, shared=shared)
    listed = lists.listed(source)
    assert len(listed) < 150
    assert not shared or set(source) <= set(listed)
    text = list(model.results([SENTENCE], max_new_tokens=STEPS)[0][0].tokens)
    best = [*text, EOS][:STEPS]
    scores = tiny.equations(weights, source, best[:-1], sizes)[:, listed]
    chosen = scores[range(len(best)), [listed.index(token) for token in best]]
    assert (scores.max(1) - chosen < 0.2 * scores.std()).all(), "int8 differs by rounding only"


def test_every_published_configuration_is_tested(corpora: Path) -> None:
    path = corpora.parent / "models" / "firefox" / "metadata.json"
    if not path.is_file():
        pytest.skip("models/firefox/metadata.json is not beside the folder of shared corpora")
    models = json.loads(path.read_text("utf-8")).values()
    published = Counter(json.dumps(model["modelConfig"], sort_keys=True) for model in models)
    assert published.total() == sum(variant["models"] for variant in PUBLISHED["variants"]) == 137
    assert published.keys() == {json.dumps(config, sort_keys=True) for config in CONFIGS}
    assert (len(PUBLISHED["variants"]), len(CONFIGS), len(SHAPES)) == (16, 20, 8)
