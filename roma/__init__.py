"""ROMA: the vocabulary shared by both halves, and the wiring that starts them.

This file imports nothing, so that a core module can use the vocabulary without dragging in
the wiring above it.
"""
