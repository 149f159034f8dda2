"""Store what examples of the site print that need torch or MindSpore: it is built without them.

`python docs/record_examples.py` runs those of each framework that this Python has; with --check it
only tells which print something else than is stored. `make record` does it with both.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys

from derived import running


def main() -> int:
    """Store the outputs, or check them; return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    old: dict[str, list[str]] = json.loads(running.RECORD.read_text(encoding="utf-8"))
    new: dict[str, list[str]] = {}
    for framework in running.DIALECTS:
        if importlib.util.find_spec(framework):
            new |= running.record(framework)
        else:
            new |= {name: old[name] for name in old if name.endswith(f"_{framework}")}
    if check:
        stale = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        for name in stale:
            print(f"{name} prints {new.get(name)}, not {old.get(name)}; run make record")
        return 1 if stale else 0
    running.RECORD.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
