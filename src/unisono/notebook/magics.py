"""IPython's magics `%%ranks` and `%ranks`: `%load_ext unisono`.

%%ranks 4 --engine shm      runs the cell on four ranks, which stay alive for the next cells
%%ranks                     runs the cell on the same ranks
ranks = %ranks              the ranks as an object, to call functions on
%ranks stop                 ends them
"""

from __future__ import annotations

import argparse
import sys
import traceback
from types import TracebackType
from typing import Any, NoReturn

from unisono.errors import UnisonoError
from unisono.notebook.ranks import Ranks

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

#: What tracebacks call a cell, before its number.
_CELL = "ranks cell "
_current: _Magic | None = None


def load_ipython_extension(shell: Any) -> None:
    """Give the magics to an IPython shell; `%load_ext unisono` calls this."""
    global _current
    unload_ipython_extension(shell)
    _current = _Magic(shell)
    shell.register_magic_function(_current.ranks, magic_kind="line_cell", magic_name="ranks")


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away, and end the ranks; `%unload_ext unisono` calls this."""
    global _current
    if _current is not None:
        _current.stop()
        _current = None
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("ranks", None)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong, and does not end the program."""

    def __init__(self) -> None:
        super().__init__(prog="%%ranks", add_help=False, allow_abbrev=False)
        self.add_argument("n", nargs="?", metavar="N", help="the number of ranks, or stop")
        self.add_argument("--engine", metavar="E", help="threads, or shm and others: processes")
        self.add_argument("--timeout", type=float, metavar="S", help="seconds that a call waits")
        self.add_argument("--push", metavar="A,B", help="variables of the notebook to set first")
        self.add_argument("--out", metavar="NAME", help="the variable that gets the results")

    def error(self, message: str) -> NoReturn:
        raise _usage(
            f"{message}; write %%ranks [N] [--engine E] [--timeout S] [--push A,B] [--out NAME]"
        )


class _Magic:
    """The magics of one shell, and the ranks that its cells use."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._parser = _Parser()
        self._ranks: Ranks | None = None
        self._timeout: float | None = None

    def ranks(self, line: str, cell: str | None = None) -> Any:
        """Run the cell on ranks: %%ranks [N] [--engine E] [--timeout S] [--push A,B] [--out NAME].

        The ranks and their variables stay for the next cells. The cell has no access to variables
        of the notebook but for those that --push names. `%ranks` returns the ranks as an object,
        and `%ranks stop` ends them.
        """
        options = self._parser.parse_args(line.split())
        if options.n == "stop":
            self.stop()
            return None
        pushed = self._variables(options.push)
        ranks = self._find(options)
        if pushed:
            ranks.push(**pushed)
        if cell is None:
            return ranks
        # A semicolon at the end means, as in any cell, that the value is not wanted.
        wanted = not cell.rstrip().endswith(";")
        try:
            number = len(self._shell.history_manager.input_hist_parsed) - 1
            results = ranks.execute(cell, results=wanted, name=f"{_CELL}{number}")
        except SyntaxError:
            raise
        except BaseException as error:
            _explain(error)
            raise
        if options.out:
            self._shell.user_ns[options.out] = results
            return None
        return results if any(result is not None for result in results) else None

    def stop(self) -> None:
        """End the ranks, if there are any."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def _variables(self, names: str | None) -> dict[str, Any]:
        found = {}
        for name in filter(None, (names or "").split(",")):
            if name not in self._shell.user_ns:
                raise _usage(f"--push {name}: the notebook has no variable {name!r}")
            found[name] = self._shell.user_ns[name]
        return found

    def _find(self, options: argparse.Namespace) -> Ranks:
        """The ranks that are there, or new ones if others are wanted or one has died."""
        before = self._ranks
        if before is None and options.n is None:
            raise _usage("there are no ranks yet; say how many: %%ranks 4")
        n = before.size if before is not None else 0
        if options.n is not None:
            n = int(options.n) if options.n.isdecimal() else 0
            if n < 1:
                raise _usage(f"the number of ranks is {options.n!r}; give 1 or more, or stop")
        engine = options.engine or (before.engine if before is not None else "threads")
        timeout = self._timeout if options.timeout is None else options.timeout
        same = before is not None and (n, engine, timeout) == (
            before.size,
            before.engine,
            self._timeout,
        )
        if before is not None and same and before.is_usable:
            return before
        try:
            made = Ranks(n, engine, timeout)
        except UnisonoError as error:
            raise _usage(str(error)) from None
        if before is not None:
            why = "end" if before.is_usable else "cannot be used any more"
            print(f"unisono: {before} {why}; {made} start without variables", file=sys.stderr)
            self.stop()
        self._ranks, self._timeout = made, timeout
        return made


def _usage(text: str) -> Exception:
    from IPython.core.error import UsageError

    error: Exception = UsageError(f"%%ranks: {text}")
    return error


def _explain(error: BaseException) -> None:
    """Let IPython show where the rank failed, and no frames of IPython's and ours."""
    notes = list(getattr(error, "__notes__", ()))
    elsewhere = [note for note in notes if note.startswith("traceback in the process of rank")]
    if elsewhere:
        others = [note for note in notes if note not in elsewhere]
        lines = [*elsewhere[0].splitlines()[1:], *others]
    else:
        trace: TracebackType | None = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_CELL):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
        lines = text.rstrip().splitlines()
    # IPython's own way to let an error say how it looks.
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
