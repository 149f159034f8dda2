"""What several engines use: reductions, the consistency check, an executor, messages to oneself."""
