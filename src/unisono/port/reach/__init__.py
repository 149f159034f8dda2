"""Collectives that only some ranks may reach."""
