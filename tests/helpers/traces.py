"""Traces as `core.trace` writes them, made up for a test."""

from __future__ import annotations

from typing import Any

__all__ = ["trace_data"]


def trace_data() -> dict[str, Any]:
    """A small trace without a fault."""
    calls = {
        "sequence": 1, "group": 0, "call": 1, "verb": "all_reduce", "dtype": "float32",
        "count": 8, "op": "sum", "root": None, "peer": None, "call_site": "train.py:3",
        "began": 1000, "ended": 2000, "state": "done",
    }  # fmt: skip
    ranks = [
        {"rank": n, "pid": 10 + n, "state": "running", "calls": [list(calls.values())]}
        for n in range(2)
    ]
    return {
        "unisono": "trace", "version": 2, "job": "a job", "script": "train.py",
        "written": "2026-01-01T00:00:00+00:00", "clock": 5000, "by": 0, "reason": "none",
        "size": 2, "fields": list(calls), "ranks": ranks,
    }  # fmt: skip
