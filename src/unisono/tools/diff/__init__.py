"""`unisono diff`."""
