"""One layer: what mixes tokens, what works on each alone, and how both join the residual stream."""
