"""Keys, tokens, TLS and the guards of listeners: proof of identity, and limits before it."""
