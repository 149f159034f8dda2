"""Debugging one rank of a job at its terminal."""
