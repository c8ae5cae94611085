"""Connections to model servers: HTTP and gRPC, and the classification of their answers."""
