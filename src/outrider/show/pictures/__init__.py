"""Pictures of evaluations as PNG, all in one palette."""
