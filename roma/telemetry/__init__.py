"""Logs, metrics and decision logs: what programs report about themselves."""
