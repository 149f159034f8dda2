"""`unisono bench`."""
