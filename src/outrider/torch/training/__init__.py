"""Training: objectives, the Trainer subclass, and one run from config to model folder."""
