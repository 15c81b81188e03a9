"""`outrider lab bench train`: training speed relative to a bare loop and to transformers."""
