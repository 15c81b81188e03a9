"""`generate(..., custom_generate=tandem(FOLDER))`: the tokens of plain `generate`, or an error.

With the random drafter nearly every draft is rejected; the drafter trained briefly on the model's
output has some accepted.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MarianConfig,
    MarianMTModel,
    StoppingCriteria,
    StoppingCriteriaList,
    TextStreamer,
)

from outrider.errors import ConfigError, ModelError, UnsupportedError
from outrider.torch.models import Drafter, DrafterConfig, load_model
from outrider.torch.training.kinds.drafter import DrafterObjective
from outrider.torch.transformers import tandem

WORDS, PAD, END = 40, 39, 0


def new_marian(*, seed: int = 0, decoder_layers: int = 2) -> MarianMTModel:
    """A model with random weights."""
    torch.manual_seed(seed)
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    inner = {f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")}
    config = MarianConfig(
        vocab_size=WORDS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=decoder_layers,
        **heads,
        **inner,
        activation_function="swish",
        scale_embedding=True,
        dropout=0.0,
        max_position_embeddings=64,
        init_std=0.2,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    model.generation_config.max_length = None
    return model.eval()


def learn_to_reverse(model: MarianMTModel) -> None:
    """Train briefly: with random weights every text repeats one token."""
    step = torch.optim.Adam(model.parameters(), lr=3e-3)
    for number in range(200):
        given = inputs(32, seed=1000 + number)
        source_BS, real_BS = given["input_ids"], given["attention_mask"].bool()
        rows = [
            [*source.flip(0).tolist(), END]
            for source in (row[keep] for row, keep in zip(source_BS, real_BS, strict=True))
        ]
        labels = torch.tensor([[*row, *[-100] * (12 - len(row))] for row in rows])
        step.zero_grad()
        model(**given, labels=labels).loss.backward()
        step.step()


def inputs(rows: int = 6, *, seed: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    source_BS = torch.randint(1, PAD, (rows, 11))
    length_B1 = torch.randint(3, 12, (rows, 1))
    mask_BS = (torch.arange(11) < length_B1).long()
    return {"input_ids": source_BS.where(mask_BS.bool(), PAD), "attention_mask": mask_BS}


def train(drafter: Drafter, model: MarianMTModel) -> None:
    """Train the drafter briefly on the model's output."""
    given = inputs(24, seed=5)
    text_BT = model.generate(**given, max_new_tokens=20)[:, 1:]
    after_BT = (text_BT == END).cumsum(1) - (text_BT == END).long() > 0
    batch = {**given, "labels": text_BT.masked_fill(after_BT, -100)}
    objective, step = DrafterObjective(), torch.optim.Adam(drafter.parameters(), lr=5e-3)
    drafter.train()
    for _ in range(60):
        loss = objective.loss(drafter, batch, divisor=objective.count(batch), smoothing=0.0)
        step.zero_grad()
        loss.backward()
        step.step()


@pytest.fixture(scope="module")
def model() -> MarianMTModel:
    """A model whose greedy texts vary and differ in length."""
    model = new_marian()
    learn_to_reverse(model)
    return model


@pytest.fixture(scope="module", params=["random", "trained"])
def folder(
    request: pytest.FixtureRequest, model: MarianMTModel, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    target = load_model(path)
    torch.manual_seed(3)
    drafter = Drafter(DrafterConfig.for_target(target.config, block=6, train_block=4)).bind(target)
    if request.param == "trained":
        train(drafter, model)
    drafter.save_pretrained(path / "drafter")
    return path


def same(model: MarianMTModel, folder: Path, given: dict[str, Tensor], **options: Any) -> Tensor:
    plain: Tensor = model.generate(**given, **options)
    found = model.generate(**given, **options, custom_generate=tandem(folder))
    assert torch.equal(found, plain), (found.tolist(), plain.tolist())
    assert not found.is_inference()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_batches_and_single_rows_equal_generate(
    model: MarianMTModel, folder: Path, seed: int
) -> None:
    given = inputs(seed=seed)
    text = same(model, folder, given, max_new_tokens=25)
    assert len({row.tolist().index(END) if END in row else 99 for row in text}) > 1, "all alike"
    for row in range(3):
        same(model, folder, {key: one[row : row + 1] for key, one in given.items()}, max_length=30)


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
        {"max_length": 9},
        {"min_new_tokens": 12, "max_new_tokens": 20},
        {"min_length": 8, "max_length": 20},
        {"eos_token_id": [END, 7, 11, 20], "max_new_tokens": 20},
        {"eos_token_id": [], "max_new_tokens": 12},
        {"bad_words_ids": [[PAD], [3], [4, 5]], "max_new_tokens": 20},
        {"suppress_tokens": [1, 2, 3], "max_new_tokens": 20},
        {"begin_suppress_tokens": [END, 9], "max_new_tokens": 20},
        {"forced_bos_token_id": 5, "forced_eos_token_id": END, "max_length": 12},
        {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2, "max_new_tokens": 20},
        {"sequence_bias": [[[6], 2.5]], "max_new_tokens": 20},
        {"exponential_decay_length_penalty": (4, 1.3), "max_new_tokens": 20},
        {"remove_invalid_values": True, "renormalize_logits": True, "max_new_tokens": 20},
        {"use_cache": False, "max_new_tokens": 20},
        {"temperature": 1.0, "pad_token_id": 5, "max_new_tokens": 20},
    ],
    ids=lambda options: " ".join(options),
)
def test_options_are_honoured(model: MarianMTModel, folder: Path, options: dict[str, Any]) -> None:
    same(model, folder, inputs(), **options)


def test_a_given_prefix_is_continued(model: MarianMTModel, folder: Path) -> None:
    begun = torch.tensor([[PAD, 5, 6]]).expand(6, -1)
    same(model, folder, inputs(), decoder_input_ids=begun, max_length=20)
    same(model, folder, inputs(), decoder_input_ids=begun, max_length=4)


def test_without_a_mask_and_from_encoder_outputs(model: MarianMTModel, folder: Path) -> None:
    given = inputs()
    same(model, folder, {"input_ids": given["input_ids"][:1]}, max_new_tokens=20)
    memory = model.get_encoder()(**given)
    mask = {"attention_mask": given["attention_mask"]}
    plain = model.generate(**mask, encoder_outputs=memory, max_new_tokens=20)
    found = model.generate(
        **mask, encoder_outputs=memory, max_new_tokens=20, custom_generate=tandem(folder)
    )
    assert torch.equal(found, plain)


def test_drafts_reduce_passes(
    model: MarianMTModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    extend = type(load_model(folder)).extend

    def counted(self: Any, tokens_BT: Tensor, *args: Any, **options: Any) -> Tensor:
        passes.append(tokens_BT.shape)
        return extend(self, tokens_BT, *args, **options)

    monkeypatch.setattr(type(load_model(folder)), "extend", counted)
    given = {key: one[:1] for key, one in inputs(24, seed=5).items()}
    text = same(model, folder, given, max_new_tokens=20)
    if "trained" in folder.name:
        assert len(passes) < text.shape[1] - 1
    assert {shape[1] for shape in passes} <= set(range(1, 8))


def test_ties_are_decided_by_transformers(model: MarianMTModel, folder: Path) -> None:
    """Half of the tokens duplicate the other half: every step is a tie."""
    twins = new_marian()
    twins.load_state_dict(model.state_dict())
    half = WORDS // 2
    with torch.no_grad():
        twins.model.shared.weight[half:-1] = twins.model.shared.weight[1:half]
        twins.final_logits_bias[:, half:-1] = twins.final_logits_bias[:, 1:half]
    for seed in range(3):
        same(twins, folder, inputs(seed=seed), max_new_tokens=20)
        same(twins, folder, inputs(seed=seed), max_new_tokens=20, min_new_tokens=5)


def test_changed_weights_are_used(model: MarianMTModel, folder: Path) -> None:
    changing, decode = new_marian(seed=7), tandem(folder)
    for _ in range(2):
        plain = changing.generate(**inputs(), max_new_tokens=20)
        found = changing.generate(**inputs(), max_new_tokens=20, custom_generate=decode)
        assert torch.equal(found, plain)
        with torch.no_grad():
            for name, weight in changing.named_parameters():
                if "embed_positions" not in name:
                    weight.add_(torch.randn_like(weight) * 0.2)


def test_weights_are_shared(model: MarianMTModel, folder: Path) -> None:
    decode = tandem(folder)
    model.generate(**inputs(), max_new_tokens=2, custom_generate=decode)
    ((_, target, _),) = decode._bound.values()
    assert target.tokens.weight.data_ptr() == model.model.shared.weight.data_ptr()
    ours = target.decoder.blocks[1].feedforward.up.weight
    assert ours.data_ptr() == model.model.decoder.layers[1].fc1.weight.data_ptr()


class Ignored(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


class Never(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, r"does not honour num_beams=2; pass num_beams=1"),
        ({"do_sample": True}, "does not honour do_sample; pass do_sample=False"),
        ({"penalty_alpha": 0.5, "top_k": 3}, "contrastive search"),
        ({"prompt_lookup_num_tokens": 2}, "assisted generation"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"output_scores": True, "return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"max_time": 9.0}, "the stopping criterion MaxTimeCriteria"),
        ({"encoder_no_repeat_ngram_size": 2}, "logits processor EncoderNoRepeatNGram"),
        ({"guidance_scale": 2.0}, "logits processor UnbatchedClassifierFreeGuidance"),
        ({"prefix_allowed_tokens_fn": lambda *_: [1]}, "PrefixConstrainedLogitsProcessor"),
        ({"logits_processor": LogitsProcessorList([Ignored()])}, "logits processor Ignored"),
        ({"stopping_criteria": StoppingCriteriaList([Never()])}, "stopping criterion Never"),
        ({"decoder_attention_mask": torch.ones(6, 1)}, "decoder_attention_mask"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, dict) else "",
)
def test_unsupported_options_are_refused_by_name(
    model: MarianMTModel, folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        model.generate(**inputs(), max_new_tokens=5, **options, custom_generate=tandem(folder))


def test_options_that_generate_drops_silently_are_refused(
    model: MarianMTModel, folder: Path
) -> None:
    one = {key: value[:1] for key, value in inputs().items()}
    with pytest.raises(UnsupportedError, match="does not honour streamer"):
        model.generate(
            **one,
            max_new_tokens=3,
            streamer=TextStreamer(_Mute()),
            custom_generate=tandem(folder),
        )


class _Mute:
    def decode(self, *_: Any, **__: Any) -> str:
        return ""


def test_models_that_cannot_be_exact_are_refused(model: MarianMTModel, folder: Path) -> None:
    half = new_marian().to(torch.bfloat16)
    with pytest.raises(UnsupportedError, match=r"computes in bfloat16.*dtype=torch\.float32"):
        half.generate(**inputs(), max_new_tokens=3, custom_generate=tandem(folder))
    learning = new_marian().train()
    with pytest.raises(UnsupportedError, match=r"training mode.*model\.eval\(\)"):
        learning.generate(**inputs(), max_new_tokens=3, custom_generate=tandem(folder))


def test_a_model_that_differs_from_its_config_is_refused(folder: Path) -> None:
    other = new_marian()
    other.config.activation_function = "gelu"  # not the activation of its layers
    with pytest.raises(UnsupportedError, match=r"does not compute what its config describes"):
        other.generate(**inputs(), max_new_tokens=3, custom_generate=tandem(folder))
    other = new_marian()
    with torch.no_grad():
        other.model.decoder.embed_positions.weight.mul_(2)
    with pytest.raises(ModelError, match="is not the table of sinusoids"):
        other.generate(**inputs(), max_new_tokens=3, custom_generate=tandem(folder))


def test_a_folder_without_a_fitting_drafter_is_refused(
    model: MarianMTModel, folder: Path, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no drafter"):
        model.generate(**inputs(), max_new_tokens=3, custom_generate=tandem(tmp_path))
    with pytest.raises(ConfigError, match=r"draft_tokens: got 9, but this drafter drafts 1 to 6"):
        model.generate(**inputs(), max_new_tokens=3, custom_generate=tandem(folder, draft_tokens=9))
    other = new_marian(decoder_layers=1)
    with pytest.raises(ModelError, match="drafter"):
        other.generate(**inputs(), max_new_tokens=3, custom_generate=tandem(folder))
