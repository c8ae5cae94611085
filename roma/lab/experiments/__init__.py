"""Experiments: systems, loads and bounds to compare, around the simulator."""
