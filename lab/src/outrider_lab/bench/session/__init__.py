"""`outrider lab bench session`: continuous batching relative to fixed batches."""
