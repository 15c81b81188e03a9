"""Everything that needs PyTorch: layers, models, training, compression and the PyTorch backend."""
