"""Starts ranks on this host, watches them and ends them."""
