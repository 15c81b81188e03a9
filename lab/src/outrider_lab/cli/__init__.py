"""Commands of `outrider lab`."""
