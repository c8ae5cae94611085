"""Control laws: measurement in, demand out. Pure step functions without a clock."""
