"""The dispatcher's edge: the only part that knows a socket, a task or a clock."""
