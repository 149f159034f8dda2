"""`unisono doctor`."""
