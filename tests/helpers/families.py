"""Tiny random models of other families, made by transformers with non-default options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

WORDS = 64
PAD, END = 1, 2
LANGUAGES = ("eng_Latn", "deu_Latn", "fra_Latn")
FIRST_LANGUAGE = WORDS - len(LANGUAGES)

TWO_SIDED: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 70,
    "init_std": 0.3,
    "decoder_start_token_id": END,
}
T5: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 24,
    "d_kv": 10,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "layer_norm_epsilon": 0.02,
    "initializer_factor": 1.0,
    "pad_token_id": 0,
    "eos_token_id": END,
    "decoder_start_token_id": 0,
}
LLAMA: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rms_norm_eps": 0.01,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 3,
    "eos_token_id": [END, 5],
    "pad_token_id": PAD,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT2: dict[str, Any] = {
    "vocab_size": WORDS,
    "n_positions": 80,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 3,
    "initializer_range": 0.3,
    "bos_token_id": 3,
    "eos_token_id": END,
}


class Family(NamedTuple):
    """The model class, config class and options of a family."""

    model: Callable[[Any], Any]
    config: Callable[..., Any]
    options: dict[str, Any]
    translates: bool = True


def linear(factor: float) -> dict[str, Any]:
    return {"rope_type": "linear", "rope_theta": 100.0, "factor": factor}


FAMILIES: dict[str, Family] = {
    "marian": Family(
        hf.MarianMTModel,
        hf.MarianConfig,
        TWO_SIDED
        | {"pad_token_id": PAD, "decoder_start_token_id": PAD}
        | dict.fromkeys(("eos_token_id", "forced_eos_token_id"), END),
    ),
    "bart": Family(
        hf.BartForConditionalGeneration, hf.BartConfig, TWO_SIDED | {"scale_embedding": True}
    ),
    "bart relu": Family(
        hf.BartForConditionalGeneration, hf.BartConfig, TWO_SIDED | {"activation_function": "relu"}
    ),
    "mbart": Family(
        hf.MBartForConditionalGeneration,
        hf.MBartConfig,
        TWO_SIDED | {"scale_embedding": True, "activation_function": "gelu_new"},
    ),
    "m2m_100": Family(hf.M2M100ForConditionalGeneration, hf.M2M100Config, TWO_SIDED),
    "t5": Family(hf.T5ForConditionalGeneration, hf.T5Config, T5),
    "t5 gated": Family(
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": Family(hf.MT5ForConditionalGeneration, hf.MT5Config, T5),
    "gpt2": Family(hf.GPT2LMHeadModel, hf.GPT2Config, GPT2, translates=False),
    "gpt2 scaled": Family(
        hf.GPT2LMHeadModel,
        hf.GPT2Config,
        GPT2
        | {
            "n_inner": 44,
            "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": False,
            "activation_function": "gelu",
            "layer_norm_epsilon": 0.03,
            "tie_word_embeddings": False,
        },
        translates=False,
    ),
    "llama": Family(
        hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA | {"rope_parameters": LLAMA3}, translates=False
    ),
    "llama biased": Family(
        hf.LlamaForCausalLM,
        hf.LlamaConfig,
        LLAMA
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "hidden_act": "gelu",
            "rope_parameters": linear(3.0),
        },
        translates=False,
    ),
    "mistral": Family(
        hf.MistralForCausalLM, hf.MistralConfig, LLAMA | {"sliding_window": None}, translates=False
    ),
    "mistral window": Family(
        hf.MistralForCausalLM, hf.MistralConfig, LLAMA | {"sliding_window": 5}, translates=False
    ),
    "qwen2": Family(
        hf.Qwen2ForCausalLM,
        hf.Qwen2Config,
        {key: value for key, value in LLAMA.items() if key != "head_dim"},
        translates=False,
    ),
}


def make(name: str, *, seed: int = 0) -> Any:
    """Return a model whose biases and norms differ from their initial values."""
    family = FAMILIES[name]
    torch.manual_seed(seed)
    model = family.model(family.config(**family.options)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape))
        if name.startswith(("t5", "mt5")):
            for key, weight in model.named_parameters():
                if "relative_attention_bias" in key:
                    weight.normal_(std=2.0)
        if getattr(model, "final_logits_bias", None) is not None:
            model.final_logits_bias.normal_()
    return model


def greedy(model: Any, inputs: dict[str, Any], *, new: int, **options: Any) -> list[int]:
    """Return the greedy text of transformers without the prompt and the end token."""
    config = hf.GenerationConfig(
        **{**model.generation_config.to_dict(), "forced_eos_token_id": None, **options},
    )
    config.update(do_sample=False, num_beams=1, max_new_tokens=new, max_length=None)
    if config.pad_token_id is None:
        config.pad_token_id = ends(model.config)[0]
    if config.pad_token_id not in ends(model.config):
        config.suppress_tokens = [config.pad_token_id]  # ours never generates it
    found: list[int] = model.generate(**inputs, generation_config=config)[0].tolist()
    return found


def ends(config: Any) -> list[int]:
    found = config.eos_token_id
    return found if isinstance(found, list) else [found]


def cut(tokens: list[int], stops: list[int]) -> list[int]:
    """Remove the end token and all tokens after it."""
    for place, token in enumerate(tokens):
        if token in stops:
            return tokens[:place]
    return tokens


def tokenizer(*, before: str = "", after: str = "", languages: bool = False) -> Tokenizer:
    """Build a tokenizer in which `w7` is token 7; the template adds the special tokens."""
    special = {0: "<unk>", PAD: "<pad>", END: "</s>", 3: "<s>"}
    if languages:
        special |= {FIRST_LANGUAGE + n: name for n, name in enumerate(LANGUAGES)}
    names = {special.get(n, f"w{n}"): n for n in range(WORDS)}
    pipeline = Tokenizer(WordLevel(names, unk_token="<unk>"))
    pipeline.pre_tokenizer = WhitespaceSplit()
    pipeline.add_special_tokens([AddedToken(name, special=True) for name in special.values()])
    if before or after:
        around = {name: names[name] for name in f"{before} {after}".split()}
        template = [*before.split(), "$A", *after.split()]
        pipeline.post_processor = TemplateProcessing(
            single=" ".join(template), special_tokens=list(around.items())
        )
    return pipeline


def save(model: Any, folder: Path, **around: Any) -> Path:
    """Save a model with a tokenizer as transformers does."""
    model.save_pretrained(folder)
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(**around),
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
    )
    fast.save_pretrained(folder)
    return folder


def text(dice: torch.Generator, length: int) -> str:
    ids = torch.randint(4, FIRST_LANGUAGE, (length,), generator=dice).tolist()
    return " ".join(f"w{n}" for n in ids)
