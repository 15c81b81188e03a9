"""`outrider lab bench service`: our server beside other translation services."""
