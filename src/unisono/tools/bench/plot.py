"""The picture of `unisono bench`: time against size, a panel for each collective and rank count.

Background is transparent and texts are of a middle grey, so that the picture can be read on a light
page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unisono.core.registry import install_command
from unisono.errors import ArgumentError
from unisono.tools.formatting import byte_size, duration, plural

__all__ = ["check", "draw"]

_GREY = "#7a7a7a"
#: Colour, marker and line of each library; the colours differ for the colour-blind too.
_STYLES = {
    "unisono": ("#e8590c", "o", "-"),
    "intel": ("#1c7ed6", "s", "-"),
    "openmpi": ("#12a37a", "^", "-"),
    "mpich": ("#c2569b", "D", "-"),
    "gloo": ("#a8821a", "v", "-"),
    "memcpy": (_GREY, "", "--"),
}
_SUFFIXES = (".svg", ".png", ".pdf")


def check(file: str) -> None:
    """Refuse, before anything is measured, what cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ArgumentError(f"--plot needs matplotlib: {install_command('matplotlib')}") from None
    if Path(file).suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"--plot {file} is not a picture; end it with {', '.join(_SUFFIXES)}")
    if not Path(file).parent.is_dir():
        raise ArgumentError(f"--plot {file}: there is no folder {Path(file).parent}")


def draw(found: dict[str, Any], file: str) -> None:
    """Draw all rows of a run."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    cells = found["cells"]
    collectives = list(dict.fromkeys(cell["collective"] for cell in cells))
    ranks = list(dict.fromkeys(cell["ranks"] for cell in cells))
    panels = [(n, collective) for collective in collectives for n in ranks]
    # A column for each number of ranks; if there is only one, collectives stand side by side.
    across = len(ranks) if len(ranks) > 1 else min(len(collectives), 3)
    down = -(-len(panels) // across)
    with rc_context({"font.size": 13, "text.color": _GREY, "axes.labelcolor": _GREY}):
        figure = Figure(figsize=(max(4.6 * across, 6), 3.9 * down + 0.9), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
        handles: dict[str, Any] = {}
        for axis, (n, collective) in zip(axes, panels, strict=False):
            own = [cell for cell in cells if (cell["ranks"], cell["collective"]) == (n, collective)]
            _draw_panel(axis, own, handles)
            axis.set_title(f"{collective}, {plural(n, 'rank')}", fontsize=14)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        for axis in axes[::across]:
            axis.set_ylabel("time of a call")
        order = [name for name in _STYLES if name in handles]
        figure.legend(
            [handles[name] for name in order],
            order,
            loc="outside upper center",
            ncols=len(order),
            frameon=False,
        )
        try:
            figure.savefig(file, dpi=110, transparent=True)
        except OSError as error:
            raise ArgumentError(f"--plot {file} cannot be written: {error}") from error


def _draw_panel(axis: Any, cells: Sequence[dict[str, Any]], handles: dict[str, Any]) -> None:
    """Draw the lines of one collective, with the spread of each."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    for name, (colour, marker, line) in _STYLES.items():
        own = sorted(
            (cell for cell in cells if name in cell["seconds"]), key=lambda cell: int(cell["bytes"])
        )
        if not own:
            continue
        sizes = [cell["bytes"] for cell in own]
        (handles[name],) = axis.loglog(
            sizes,
            [cell["seconds"][name] for cell in own],
            color=colour,
            marker=marker,
            markersize=5,
            linestyle=line,
            linewidth=2.8 if name == "unisono" else 1.5,
            zorder=3 if name == "unisono" else 2,
        )
        axis.fill_between(
            sizes,
            [cell["quartiles"][name][0] for cell in own],
            [cell["quartiles"][name][1] for cell in own],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    ticks = [cell["bytes"] for cell in cells]
    axis.set_xticks(ticks, [byte_size(size) for size in ticks], rotation=45, ha="right")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
    axis.tick_params(colors=_GREY, labelsize=11)
    axis.grid(color=_GREY, alpha=0.25)
    for spine in axis.spines.values():
        spine.set_color(_GREY)
        spine.set_alpha(0.5)
