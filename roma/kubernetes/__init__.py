"""A Kubernetes API server: credentials, calls, and the pods of a namespace as they come and go."""
