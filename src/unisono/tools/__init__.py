"""The commands that report: one folder for each, and what they share."""
