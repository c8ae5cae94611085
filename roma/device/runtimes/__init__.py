"""Runtimes that execute models on a device; only a runtime's module imports its library."""
