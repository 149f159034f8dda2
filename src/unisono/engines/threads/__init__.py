"""Ranks are threads of one process: the readable reference."""
