"""Communication primitives, which are built in one place and called in another."""
