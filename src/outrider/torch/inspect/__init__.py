"""Look inside a model: attention maps and patterns, tandem rounds, and HTML pages of them."""
