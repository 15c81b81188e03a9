"""`outrider lab bench start`: time and memory of a new process up to its first translation."""
