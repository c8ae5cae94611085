"""The evaluation of Fang et al. (CIKM 2017, §4) in virtual time."""
