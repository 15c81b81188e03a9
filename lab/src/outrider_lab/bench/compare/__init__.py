"""`outrider lab compare`: models trained for an equal budget on one task."""
