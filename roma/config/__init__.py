"""`roma.yaml` and what is derived from it: schema, checks, placement, changes while it runs."""
