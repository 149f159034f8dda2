"""The output of all ranks in one place: labels, live lines, and tracebacks that are folded."""
