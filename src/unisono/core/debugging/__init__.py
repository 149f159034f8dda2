"""Debugging one rank of a job at its terminal, and calls in torch's profiler."""
