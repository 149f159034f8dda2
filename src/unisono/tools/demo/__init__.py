"""`unisono demo`."""
