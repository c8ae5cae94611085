"""The one program that holds the Docker socket, and what it lets others do with it.

engine      the few calls of the Engine API that ROMA makes
tunnel      the way to an engine behind ssh
containers  what a container of ours looks like: built from roma.yaml, and checked against it
broker      create, remove, list and set cores, within bounds; safe shares when a lease runs out
server      two unix sockets, one per role, and who may call them
bursts      what a container may use beyond its quota for a moment: files, not the engine's API
client      the callers' side
"""
