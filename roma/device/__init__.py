"""Workers of exclusive devices: they execute actions in their windows and decide nothing."""
