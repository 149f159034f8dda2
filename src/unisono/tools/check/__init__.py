"""`unisono check`."""
