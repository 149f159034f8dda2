"""`unisono.ranks`: ranks that stay alive between calls and notebook cells, and IPython's magics."""
