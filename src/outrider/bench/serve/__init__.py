"""A server under load: `outrider bench serve`."""
