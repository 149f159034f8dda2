"""Ranks of one host whose tensors are on one GPU that they share."""
