"""Connections to model servers: HTTP and gRPC, and their answers' classification."""
