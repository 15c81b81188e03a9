"""`outrider lab bench modes`: quality and speed of every decoding mode of one model."""
