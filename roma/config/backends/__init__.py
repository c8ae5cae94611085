"""Backends: where the model servers of a worker run. One file per kind."""
