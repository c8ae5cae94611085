"""Scheduling policies, one file each; the registry is `dispatcher.schedulers.registry`."""
