"""Authentication and authorisation of clients: keys, OpenID Connect, certificates, rate limits."""
