"""Workloads: pure, seeded arrival processes and traces.

The load generator sends the requests over a socket, the simulator feeds them to the same dispatcher
core: both use one definition of a load.
"""
