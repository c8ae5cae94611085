"""Planned devices: requests as tensors, actions over a connection, results as events."""
