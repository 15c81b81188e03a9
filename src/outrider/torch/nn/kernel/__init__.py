"""How attention is computed: dense, in tiles, in sorted buckets, by FlexAttention."""
