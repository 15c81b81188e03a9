"""The words and sizes that descriptions of models accept."""

__all__ = [
    "ACTIVATIONS",
    "BIASES",
    "BUCKET_LIMIT",
    "CHUNK_LIMIT",
    "CORES",
    "DEPTHS",
    "ENCODER_CORES",
    "EVEN_POSITIONS",
    "FARTHEST",
    "GATE_LIMIT",
    "IN_ATTENTION",
    "LAYER_LIMIT",
    "LIMITS",
    "NEIGHBOUR_LIMIT",
    "NEXT_LIMIT",
    "NORMS",
    "POSITIONS",
    "POSITION_LIMIT",
    "RESIDUALS",
    "SHIFTED_POSITIONS",
    "TRANSITIONS",
]

POSITIONS = (
    *("sinusoidal", "learned", "coordinate", "rotary", "relative", "distance", "bucketed"),
    *("alibi", "none"),
)
EVEN_POSITIONS = ("sinusoidal", "coordinate", "rotary", "relative", "alibi")
SHIFTED_POSITIONS = ("rotary", "relative", "alibi", "none")
"""Those that only know how far apart two tokens stand, or nothing."""
IN_ATTENTION = ("rotary", "relative", "distance", "bucketed", "alibi")
"""Those that say nothing to embeddings."""
BIASES = ("relative", "alibi")
"""Positions that add columns to queries and keys."""
NORMS = ("pre", "post")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
RESIDUALS = ("add", "gru", "reversible")
CORES = ("attention", "gru", "ssru")
"""Of layers that write."""
ENCODER_CORES = ("attention", "gru", "lstm")
DEPTHS = ("stacked", "shared")
TRANSITIONS = ("feedforward", "separable_conv")
LIMITS = {"vocab_size": 1 << 24, "hidden_size": 1 << 16, "intermediate_size": 1 << 18}
LAYER_LIMIT = 1 << 10
POSITION_LIMIT = 1 << 24
NEIGHBOUR_LIMIT = 1 << 8
CHUNK_LIMIT = 1 << 10
GATE_LIMIT = 100.0
BUCKET_LIMIT = 1 << 12
FARTHEST = 16
"""Distance from which `distance` positions are all alike, where nobody says another."""
NEXT_LIMIT = 1 << 6
