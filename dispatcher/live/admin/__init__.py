"""The admin port: exchange with supervisors, live page, metrics."""
