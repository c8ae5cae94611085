"""The dispatcher's edge: the only place that knows a socket, a task or a clock."""
