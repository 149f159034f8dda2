"""`unisono port`."""
