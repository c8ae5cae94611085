"""Benchmarks: `make bench` (all) or `python -m bench NAME…`. Ratios measured side by side."""
