"""A server under load: `outrider lab bench serve`."""
