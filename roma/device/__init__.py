"""Workers of planned devices: they execute actions in their windows and decide nothing."""
