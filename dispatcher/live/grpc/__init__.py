"""gRPC for clients of the gateway and towards model servers; imported only where configured."""
