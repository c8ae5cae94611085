"""Actuators that apply cores: one file each, all behind `base.Actuator`."""
