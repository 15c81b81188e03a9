"""Auxiliary predictions of a deep language model (Al-Rfou et al., 2018, arXiv:1808.04444).

    loss = 1/N sum_l w_l sum_k c_k sum_t -log p_k(x_(t+k) | h_lt)      c_1 = 1, the others 1/2
    p_k(. | h) = softmax(E W_k norm(h))                                W_1 = 1
    w_n = 1        w_l = max(0, 1 - 2 n s / l)                         below the last layer n

h_l is what layer l gave, norm the last norm and E the head of the model, N the tokens predicted, s
the share of the training that is over. A layer counts less and less and not at all from s = l / 2n
on, lower layers first; from half of the training on only the last one predicts.
"""

from torch import Tensor, nn

__all__ = ["FURTHER_WEIGHT", "NextTokens", "layer_weights"]

FURTHER_WEIGHT = 0.5
"""What a token further ahead than the next one counts."""


class NextTokens(nn.Module):
    """One matrix for each token ahead but the next; nothing but a training loss needs them."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        # Plain layers: these are never packed for decoding.
        further = [nn.Linear(width, width, bias=False) for _ in range(tokens - 1)]
        self.further = nn.ModuleList(further)

    def forward(self, hidden_BTD: Tensor, ahead: int) -> Tensor:
        """Turn hidden states into those that predict the token `ahead` of each."""
        turned_BTD: Tensor = self.further[ahead - 2](hidden_BTD)
        return turned_BTD


def layer_weights(layers: int, progress: float) -> list[float]:
    """Return what the layers below the last count when `progress` of the training is over."""
    return [max(0.0, 1 - 2 * layers * progress / layer) for layer in range(1, layers)]
