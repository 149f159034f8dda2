"""`unisono top`."""
