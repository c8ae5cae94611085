"""The laboratory's clock, world and accounts: they drive the production cores in virtual time.

No decision is made here. The dispatcher core, the control laws and the supervisor core are the
ones that run live; only what surrounds them is simulated.
"""
