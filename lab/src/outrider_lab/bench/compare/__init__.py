"""`outrider lab compare`: train models with equal budgets on one task."""
