"""`roma profile`: what a request of each model costs on this machine.

`plan` says what to measure, `inputs` what to send, `measure` does it, `summary` turns samples into
the numbers of `roma.config.profile`, `report` writes them. It measures direct calls to the model
server: no gateway, no queue, one request at a time. It never changes a quota of a server that it
has not started itself.
"""
