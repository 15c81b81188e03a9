"""Dense softmax attention.

    y_i = sum_j w_ij v_j        w_i = softmax_{j kept}(q_i . k_j / sqrt(K) + bias_ij)

Two implementations give the same result. `scaled_dot_product_attention` never stores the T x S
weights, but on a CPU its backward is slow for short sequences, where three plain matrix products
are faster (measured: `lab/studies/attention_form.py`). On other devices SDPA is always faster. With
dropout a CPU's SDPA stores the weights as well, so there the plain form is always used.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.torch.nn.dropout import dropout as drop

PLAIN_UP_TO = 256
"""Longest sequence for which training on a CPU uses the plain form."""


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend every query to the kept keys; `keep` broadcasts to [B, H, T, S].

    `bias` is added to the scores and broadcasts likewise.
    `causal` means j <= i, both counted from 0, for whole passes (T == S).
    A query without kept keys gets a finite output that must not be used.
    """
    if _plain_wins(q_BHTK, k_BGSK, dropout):
        k_BHSK, v_BHSK = (repeat_heads(x, q_BHTK.shape[1]) for x in (k_BGSK, v_BGSK))
        return _plain(q_BHTK, k_BHSK, v_BHSK, keep=keep, causal=causal, dropout=dropout, bias=bias)
    if causal and (keep is not None or bias is not None):
        triangle_TS = _lower_triangle(q_BHTK, k_BGSK)
        keep = triangle_TS if keep is None else keep & triangle_TS
        causal = False
    if bias is not None:
        bias = bias.to(q_BHTK.dtype)
        keep = bias if keep is None else bias.masked_fill(~keep, torch.finfo(bias.dtype).min)
    return F.scaled_dot_product_attention(
        q_BHTK,
        k_BGSK,
        v_BGSK,
        attn_mask=keep,
        is_causal=causal,
        dropout_p=dropout,
        enable_gqa=q_BHTK.shape[1] != k_BGSK.shape[1],
    )


def repeat_heads(x_BGSK: Tensor, heads: int) -> Tensor:
    """Repeat grouped key-value heads for every query head."""
    repeats = heads // x_BGSK.shape[1]
    return x_BGSK if repeats == 1 else x_BGSK.repeat_interleave(repeats, dim=1)


def _plain_wins(q_BHTK: Tensor, k_BGSK: Tensor, dropout: float) -> bool:
    if q_BHTK.device.type != "cpu":
        return False
    if dropout:  # always the same form: a recomputing backward must draw the same numbers
        return True
    if not torch.is_grad_enabled():
        return False
    return max(q_BHTK.shape[2], k_BGSK.shape[2]) <= PLAIN_UP_TO


def _plain(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    *,
    keep: Tensor | None,
    causal: bool,
    dropout: float,
    bias: Tensor | None,
) -> Tensor:
    scores_BHTS = (q_BHTK * q_BHTK.shape[-1] ** -0.5) @ k_BHSK.transpose(-1, -2)
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    if causal:
        triangle_TS = _lower_triangle(q_BHTK, k_BHSK)
        keep = triangle_TS if keep is None else keep & triangle_TS
    if keep is not None:
        # Finite, so that a row without kept keys does not become NaN.
        scores_BHTS = scores_BHTS.masked_fill(~keep, torch.finfo(scores_BHTS.dtype).min)
    weights_BHTS = drop(scores_BHTS.softmax(-1), dropout, dropout > 0)
    return weights_BHTS.to(v_BHSK.dtype) @ v_BHSK


def _lower_triangle(q_BHTK: Tensor, k_BGSK: Tensor) -> Tensor:
    shape = (q_BHTK.shape[2], k_BGSK.shape[2])
    return torch.ones(shape, dtype=torch.bool, device=q_BHTK.device).tril()
