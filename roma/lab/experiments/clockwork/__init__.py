"""The evaluation of the Clockwork paper (Gujarati et al., OSDI 2020, §6) in virtual time."""
