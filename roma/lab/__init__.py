"""The laboratory: simulator, learning and experiments, around the production code."""
