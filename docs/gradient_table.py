"""Write the table of gradients in the pages for MindSpore, from the mapping table.

`python docs/gradient_table.py` writes both pages; with --check it only tells which are out of date.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from pathlib import Path

from unisono import mapping

PAGES = {
    "en": Path(__file__).with_name("mindspore.md"),
    "zh": Path(__file__).with_name("mindspore.zh.md"),
}
#: What separates names, and the modules of one cell.
SEPARATORS = {"en": (", ", "; "), "zh": ("、", "；")}  # noqa: RUF001  (Chinese)
BEGIN = "<!-- From unisono/mapping, by `make docs`. -->\n"
END = "<!-- End. -->\n"


def table(language: str) -> str:
    """Return the table in one language: calls, backward in unisono, backward upstream."""
    heading = mapping.vocabulary()["heading"]
    titles = [heading["collective"][language], heading["backward"][language], "MindSpore"]
    rows = [titles, ["---"] * 3]
    for key, calls in mapping.gradients().items():
        backward = mapping.vocabulary()["gradient"][key]
        upstream = heading["same"][language]
        if "difference" in backward:
            upstream = getattr(mapping.differences()[backward["difference"]].text, language)
        rows.append([_names(calls, language), backward[language], upstream])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _names(calls: list[mapping.UpstreamCall], language: str) -> str:
    """Write the names of calls, each once, after the modules that have it."""
    comma, semicolon = SEPARATORS[language]
    modules: dict[str, list[str]] = {}
    for call in sorted(calls, key=lambda call: call.path):
        module = call.path.removeprefix("mindspore.").removeprefix("communication.")
        modules.setdefault(call.name, []).append(module.rpartition(".")[0])
    named = sorted((found, name) for name, found in modules.items())
    return semicolon.join(
        f"{comma.join(f'`{module}`' for module in found)}: {comma.join(name for _, name in group)}"
        for found, group in itertools.groupby(named, key=lambda pair: pair[0])
    )


def main() -> int:
    """Write the pages, or check them; return 1 if a page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = 0
    for language, page in PAGES.items():
        old = page.read_text(encoding="utf-8")
        pattern = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
        new, count = re.subn(
            pattern, lambda _, language=language: BEGIN + table(language) + END, old, flags=re.S
        )
        if count != 1:
            sys.exit(f"{page.name}: there are {count} places for the table, not one")
        if check and new != old:
            print(f"{page.name} is out of date; run make docs")
            stale = 1
        elif new != old:
            page.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
