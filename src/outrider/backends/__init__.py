"""Execution backends that need no PyTorch."""
