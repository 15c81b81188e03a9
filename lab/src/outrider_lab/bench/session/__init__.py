"""`outrider lab bench session`: rows that are replaced at once, against batches that wait."""
