"""Collectives that have a gradient on one side, and what keeps it on the other."""
