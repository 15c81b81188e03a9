"""Parts of one layer: token mixing, feed-forward and residual connections."""
