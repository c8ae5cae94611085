"""gRPC, in front of the gateway and towards model servers; imported only where it is configured."""
