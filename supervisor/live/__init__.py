"""The supervisor's edge: the one-second loop, its exchange with dispatchers, its API."""
