"""`roma demo`: the whole system on one machine, with real models, real requests, real quotas."""
