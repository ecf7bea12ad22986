"""Published and generated datasets by name."""
