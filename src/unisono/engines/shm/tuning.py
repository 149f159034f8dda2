"""What `unisono bench --tune` has measured on this machine, in a file that the engine reads."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

__all__ = ["machine"]


def machine() -> dict[str, Any]:
    """Tell which machine this is: figures that were measured on another one mean nothing here."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return {"cpu": model[1].strip() if model else platform.machine(), "cores": os.cpu_count()}
