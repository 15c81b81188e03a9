"""Smaller and faster models from a trained one."""
