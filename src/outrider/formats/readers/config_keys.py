"""The keys of other families' `config.json`: those of a reader, and those without effect.

A key that a reader does not read is accepted if its value is false, zero, null or empty, or if it
is listed here; all others are refused. `ALIASES` of a class of values are further names of its
keys: transformers accepts both names and prefers the alias; here both must agree.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

from outrider.errors import ConfigError, nearest
from outrider.formats.spec import build_spec

WRITTEN = {
    *("_attn_implementation", "_attn_implementation_autoset", "_commit_hash"),
    *("_experts_implementation", "_name_or_path", "_num_labels", "architectures"),
    *("chunk_size_feed_forward", "classifier_dropout", "decoder_layerdrop", "dtype", "embd_pdrop"),
    *("encoder_layerdrop", "id2label", "init_std", "initializer_factor", "initializer_range"),
    *("is_causal", "is_decoder", "is_encoder_decoder", "label2id", "model_type"),
    *("output_attentions", "output_hidden_states", "pretraining_tp", "problem_type"),
    *("reorder_and_upcast_attn", "return_dict", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "summary_type", "summary_use_proj", "transformers_version"),
    "use_cache",
}
"""Keys that transformers writes: training, outputs, heads of other tasks, and the keys that
`formats.folder` checks for all families."""
GENERATION = {
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight"),
    *("assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens", "cache_config"),
    *("cache_implementation", "compile_config", "constraints", "continuous_batching_config"),
    *("decoder_start_token_id", "disable_compile", "diversity_penalty", "do_sample", "dola_layers"),
    *("early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty"),
    *("epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "force_words_ids"),
    *("forced_bos_token_id", "forced_eos_token_id", "guidance_scale", "is_assistant"),
    *("length_penalty", "low_memory", "max_cache_len", "max_length", "max_matching_ngram_size"),
    *("max_new_tokens", "max_time", "min_length", "min_new_tokens", "min_p"),
    *("no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("num_beam_groups", "num_beams", "num_return_sequences", "output_logits", "output_scores"),
    *("penalty_alpha", "prefill_chunk_size", "prompt_lookup_num_tokens", "remove_invalid_values"),
    *("renormalize_logits", "repetition_penalty", "return_dict_in_generate", "sep_token_id"),
    *("sequence_bias", "speculation_type", "stop_strings", "suppress_tokens", "target_lookbehind"),
    *("temperature", "token_healing", "top_h", "top_k", "top_p", "typical_p", "use_mtp"),
    "watermarking_config",
}
"""Defaults of generation; `runtime.options` reads those that it applies."""
LEGACY = {
    *("attn_implementation", "classif_dropout", "finetuning_task"),
    *("force_bos_token_to_be_generated", "gradient_checkpointing", "is_llama_config"),
    *("max_sequence_length", "model_max_length", "num_labels", "output_past", "prefix"),
    *("save_step", "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript"),
    *("transformers.js_config", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16"),
    "xla_device",
}
"""Keys of published folders that transformers no longer reads."""
COMPUTED: dict[str, dict[str, Any]] = {
    "add_bias_logits": dict.fromkeys(("bart", "marian", "mbart"), True),
    "add_final_layer_norm": dict.fromkeys(("m2m_100", "mbart"), True),
    "extra_pos_embeddings": dict.fromkeys(("bart", "mbart"), 2),
    "normalize_before": dict.fromkeys(("m2m_100", "mbart"), True),
    "normalize_embedding": dict.fromkeys(("bart", "mbart"), True),
    "static_position_embeddings": dict.fromkeys(("m2m_100", "marian"), True),
}
"""Keys of published folders with the value that each family always has."""
ONLY: dict[str, tuple[str, ...]] = {
    "max_window_layers": ("qwen2",),
    "n_ctx": ("gpt2",),
    "sliding_window": ("qwen2",),
}
"""Keys that have no effect in these families: windows need `use_sliding_window`, which Qwen2
models must not set, and `n_ctx` repeats `n_positions`."""


ACTIVATIONS = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Names of activations that differ from ours."""


class _Values(Protocol):
    ALIASES: ClassVar[Mapping[str, str]]


ValuesT = TypeVar("ValuesT", bound=_Values)


def take(cls: type[ValuesT], values: Mapping[str, Any]) -> ValuesT:
    """Read the keys of a class from a `config.json`; refuse others that can change the result."""
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    _check_left(values, known | cls.ALIASES.keys())
    own = {key: values[key] for key in values.keys() & known}
    for alias, key in cls.ALIASES.items():
        value = values.get(alias)
        if value is not None and own.setdefault(key, value) != value:
            message = f"{value!r} differs from {key} {own[key]!r}; remove the wrong one"
            raise ConfigError(alias, message)
    return build_spec(cls, own)


def _check_left(values: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse keys that are not known and can change the result."""
    known, family = {*known, *WRITTEN, *GENERATION, *LEGACY}, values.get("model_type", "")
    for key, value in values.items():
        computed = COMPUTED.get(key, {}).get(family)
        if value and value != computed and key not in known and family not in ONLY.get(key, ()):
            message = f"is {repr(value)[:80]}, an unknown key of {family} models"
            fix = "remove it if it does not change the result"
            raise ConfigError(key, f"{message}{nearest(key, known)}; {fix}")


def check_twins(theirs: object, twins: Mapping[str, str]) -> None:
    """Refuse different values of two keys that are one key in our models."""
    for key, twin in twins.items():
        expected = getattr(theirs, twin)
        if (value := getattr(theirs, key, expected)) != expected:
            raise ConfigError(key, f"{value} differs from {twin} {expected}, not supported")


def activation(name: str) -> str:
    """Return our name of an activation."""
    return ACTIVATIONS.get(name, name)


def end_of(eos: int | list[int] | None) -> int:
    """Return the first end token, the default of special tokens that a config does not name."""
    first = eos[0] if isinstance(eos, list) and eos else eos
    return first if isinstance(first, int) else 0
