"""GPU policy `clockwork` (Gujarati et al., OSDI 2020), and what it loads when."""
