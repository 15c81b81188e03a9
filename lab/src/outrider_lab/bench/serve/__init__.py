"""`outrider lab bench serve`: a server under load."""
