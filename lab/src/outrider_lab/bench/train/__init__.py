"""`outrider lab bench train`: training speed beside a bare loop and transformers."""
