"""Tools beside a deployment: load generator, profiler, demo."""
