"""The laboratory's clock, plant and accounting: they drive the production cores in virtual time.

No decision is made here. The dispatcher core, the control laws and the supervisor core are the ones
that run live; only their surroundings are simulated.
"""
