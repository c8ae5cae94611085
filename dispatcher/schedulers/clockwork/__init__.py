"""GPU policy `clockwork` (Gujarati et al., OSDI 2020), and its choice of models to load."""
