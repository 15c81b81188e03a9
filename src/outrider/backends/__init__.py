"""Who computes `encode` and `extend`."""
