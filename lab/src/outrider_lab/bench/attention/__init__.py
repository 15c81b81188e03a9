"""`outrider lab bench attention`: time and memory of every attention by length."""
