"""PyTorch's own suite of distributed tests, run for a backend: `python -m torch_suite`."""
