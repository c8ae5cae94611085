"""Starts and stops the programs that a configuration describes."""
