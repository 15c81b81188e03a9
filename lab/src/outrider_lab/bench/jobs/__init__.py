"""`outrider lab bench jobs`: jobs on Ray relative to bare processes."""
