"""How long a new process takes to its first translation, and what it takes in memory."""
