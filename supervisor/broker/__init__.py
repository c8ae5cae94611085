"""The one program that holds the Docker socket, and the operations it offers to others.

engine      the few calls of the Engine API that ROMA makes
tunnel      the way to an engine behind ssh
containers  a container's specification: built from roma.yaml, and checked against it
broker      create, remove, list and set cores, within bounds; safe shares when a lease runs out
server      two unix sockets, one per role, and their permitted callers
bursts      a container's burst beyond its quota: files, not the engine's API
client      the callers' side
"""
