"""The nouns and numbers that every part of ROMA shares. Pure: no I/O and no clock."""
