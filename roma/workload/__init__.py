"""When requests come: pure, seeded arrival processes and traces.

The load generator sends them over a socket, the simulator feeds them to the same dispatcher core:
one definition of a load for both.
"""
