"""`generate(..., custom_generate=tandem(FOLDER))` for every family: the tokens of plain greedy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from outrider.errors import InputError
from outrider.torch.models import Drafter, DrafterConfig
from outrider.torch.transformers import tandem
from outrider.torch.transformers.loop import build_view

WORDS, PAD, END = 40, 1, 2
IDS = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": 0}
TWO_SIDES = {
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 40 for side in ("encoder", "decoder")},
    "vocab_size": WORDS,
    "d_model": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": END,
    "forced_eos_token_id": None,
    "init_std": 0.3,
    **IDS,
}
FAMILIES: dict[str, Any] = {
    "bart": lambda: BartForConditionalGeneration(BartConfig(**TWO_SIDES, forced_bos_token_id=None)),
    "m2m_100": lambda: M2M100ForConditionalGeneration(M2M100Config(**TWO_SIDES)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS,
            d_model=32,
            d_kv=12,
            d_ff=40,
            num_layers=2,
            num_heads=2,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            decoder_start_token_id=PAD,
            **IDS,
        )
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=64, **IDS)
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            **IDS,
        )
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = FAMILIES[request.param]().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and not any(part in name for part in ("shared", "embed", "wte")):
                weight.mul_(3.0)  # with plain random weights every text repeats one token
    model.generation_config.max_length = None
    return model


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder")
    torch.manual_seed(3)
    config = DrafterConfig.for_target(build_view(model).config, block=6, train_block=4)
    Drafter(config).save_pretrained(path / "drafter")
    return path


def inputs(model: PreTrainedModel, rows: int = 5) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids_BS = torch.randint(3, WORDS, (rows, 9))
    length_B1 = torch.randint(2, 10, (rows, 1))
    place_S = torch.arange(9)
    left = not model.config.is_encoder_decoder
    mask_BS = (place_S >= 9 - length_B1 if left else place_S < length_B1).long()
    return {"input_ids": ids_BS.where(mask_BS.bool(), PAD), "attention_mask": mask_BS}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_new_tokens": 8},
        {"bad_words_ids": [[PAD], [5], [6, 7]], "repetition_penalty": 1.5},
        {"forced_bos_token_id": 9},
        {"eos_token_id": [END, *range(20, 30)]},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_the_output_equals_generate(
    model: PreTrainedModel, folder: Path, options: dict[str, Any]
) -> None:
    given = inputs(model)
    for rows in (slice(None), slice(1), slice(2, 3)):
        part = {key: one[rows] for key, one in given.items()}
        plain = model.generate(**part, max_new_tokens=18, **options)
        found = model.generate(**part, max_new_tokens=18, **options, custom_generate=tandem(folder))
        assert torch.equal(found, plain), (found.tolist(), plain.tolist())


def test_a_prompt_padded_on_the_wrong_side_is_refused(model: PreTrainedModel, folder: Path) -> None:
    if model.config.is_encoder_decoder:
        pytest.skip("sources are padded on the right")
    given = {key: one.flip(1) for key, one in inputs(model).items()}
    with pytest.raises(InputError, match="attention_mask: rows must be padded on the left"):
        model.generate(**given, max_new_tokens=3, custom_generate=tandem(folder))
