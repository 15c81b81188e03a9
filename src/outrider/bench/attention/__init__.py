"""`outrider bench attention`: time and memory of every attention by length."""
