"""Auxiliary predictions of a deep language model (Al-Rfou et al., 2018, arXiv:1808.04444).

    loss = 1/N sum_l w_l sum_k c_k sum_t -log p_k(x_(t+k) | h_lt)      c_1 = 1, the others 1/2
    p_k(. | h) = softmax(E W_k norm(h))                                W_1 = 1
    w_n = 1        w_l = max(0, 1 - 2 n s / l)                         below the last layer n

h_l is the output of layer l, norm the last norm, E the head of the model, N the number of predicted
tokens, and s the share of training that is over. The weight of a layer falls to 0 at s = l / 2n,
lower layers first; from half of the training on only the last layer predicts.
"""

from torch import Tensor, nn

FURTHER_WEIGHT = 0.5
"""Loss weight of tokens after the next one."""


class NextTokens(nn.Module):
    """One matrix for each further token; used by the training loss only."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        # Plain layers: never packed for decoding.
        further = [nn.Linear(width, width, bias=False) for _ in range(tokens - 1)]
        self.further = nn.ModuleList(further)

    def forward(self, hidden_BTD: Tensor, ahead: int) -> Tensor:
        """Map hidden states to those that predict the token `ahead` places further."""
        turned_BTD: Tensor = self.further[ahead - 2](hidden_BTD)
        return turned_BTD


def layer_weights(layers: int, progress: float) -> list[float]:
    """Return the loss weights of the layers below the last after `progress` of the training."""
    return [max(0.0, 1 - 2 * layers * progress / layer) for layer in range(1, layers)]
