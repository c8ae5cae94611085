"""Ways to apply cores: one file each, all behind `base.Actuator`."""
