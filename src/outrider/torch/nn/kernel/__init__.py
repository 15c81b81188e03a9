"""Attention kernels: dense, tiled, bucketed and FlexAttention."""
