"""State of the dispatcher core: requests, queues, executors, devices and what they cost."""
