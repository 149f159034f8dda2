"""PyTorch's own suite of distributed tests, run for a backend: `python -m tests.torch.suite`."""
