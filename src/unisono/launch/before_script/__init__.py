"""The folder that PYTHONPATH gets for `--patch`; Python runs its sitecustomize before a script."""
