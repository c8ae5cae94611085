"""The supervisor: fits the core demands of one worker to its capacity and applies them live."""
