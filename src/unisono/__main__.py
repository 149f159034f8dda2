"""`python -m unisono`, for environments whose scripts are not on the path."""

from unisono.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
