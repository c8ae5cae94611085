"""The supervisor's edge: the control loop, its exchange with dispatchers, its API."""
