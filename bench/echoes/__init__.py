"""A trivial model, 16 floats in and out as JSON, in each system's own API: run as programs."""
