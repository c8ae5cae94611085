"""What executes models on a device: one module each, which alone knows its library."""
