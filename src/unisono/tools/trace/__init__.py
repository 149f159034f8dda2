"""`unisono trace`."""
