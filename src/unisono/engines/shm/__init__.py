"""Ranks are processes of one host, over shared memory and the native module."""
