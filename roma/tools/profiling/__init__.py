"""`roma profile`: the cost of a request of each model on this machine.

`plan` selects what to measure, `inputs` what to send, `measure` does it, `summary` turns samples
into the numbers of `roma.config.profile`, `report` writes them. It measures direct calls to the
model server: no gateway, no queue, one request at a time. It never changes the quota of a server
that it has not started itself.
"""
