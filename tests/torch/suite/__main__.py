"""The command: run PyTorch's suite for a backend and compare with the known failures.

python -m tests.torch.suite --world-size 2 4 --jobs 2
python -m tests.torch.suite --backend gloo -k all_to_all
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import sys
import time
from concurrent.futures.process import BrokenProcessPool

from tests.torch.suite import known, runner

COLUMNS = ("passed", "known failures", "unexpected", *runner.SKIP_KINDS)
FINE, FOUND, USAGE = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if all is as known, 1 if something is not, 2 if there was nothing to run."""
    options = _parser().parse_args(arguments)
    rows, complaints = [], []
    try:
        for world_size in options.world_size:
            row, said = _run(options, world_size)
            rows.append(row)
            complaints += [f"world size {world_size}: {text}" for text in said]
    except (ImportError, LookupError, BrokenProcessPool) as error:
        print(f"torch_suite: {type(error).__name__}: {error}", file=sys.stderr)
        return USAGE
    if options.list:
        return FINE
    for complaint in complaints:
        print(complaint, end="\n\n")
    _print_table(options.backend, rows)
    return FOUND if complaints else FINE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("torch_suite", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--world-size", type=int, nargs="+", default=[2, 4], metavar="N", help="how many ranks")
    add("--backend", default="unisono", help="a backend that torch knows (default: unisono)")
    add("-k", dest="patterns", action="append", metavar="PATTERN", help="only tests like this")
    add("--list", action="store_true", help="print the names of the tests, run none")
    add("--jobs", type=int, default=1, metavar="N", help="tests at a time (default: 1)")
    add("--start", choices=["fork", "spawn"], default="fork", help="how ranks start")
    add("--gpu", action="store_true", help="the tests of CUDA tensors, on ranks that share a GPU")
    add("--deadline", type=float, default=120, metavar="S", help="seconds that a test may take")
    return parser


def _run(
    options: argparse.Namespace, world_size: int
) -> tuple[collections.Counter[str], list[str]]:
    """Run at one world size; answer the row of the table and what there is to complain about."""
    failures = known.load(options.backend)
    with runner.Run(
        options.backend,
        world_size,
        jobs=options.jobs,
        start="spawn" if options.gpu else options.start,
        gpu=options.gpu,
        deadline=options.deadline,
    ) as run:
        tests = run.tests()
        patterns = options.patterns or (["cuda"] if options.gpu else None)
        chosen = [test for test in tests if _fits(test, patterns)]
        if not chosen:
            raise LookupError(f"no test fits {options.patterns}")
        if options.list:
            for test in chosen:
                reason = failures.reasons.get((test, world_size))
                print(f"{world_size} {test}" + (f": known to fail, {reason}" if reason else ""))
            return collections.Counter(), []
        outcomes = []
        begin = time.monotonic()
        for outcome in run.outcomes(chosen):
            outcomes.append(outcome)
            _print_progress(outcome, len(outcomes), len(chosen))
    row = collections.Counter(world_size=world_size, seconds=round(time.monotonic() - begin))
    for outcome in outcomes:
        is_known = (outcome.test, world_size) in failures.reasons
        if is_known != (outcome.status == "failed"):
            row["unexpected"] += 1
        else:
            row["known failures" if is_known else outcome.status] += 1
    complaints = failures.complaints(world_size, outcomes, everything=not patterns)
    return row, complaints + failures.unknown_tests(tests)


def _fits(test: str, patterns: list[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatch(test, f"*{pattern}*") for pattern in patterns)


def _print_progress(outcome: runner.Outcome, done: int, total: int) -> None:
    if outcome.ran:
        line = f"{done:3}/{total}  {outcome.seconds:5.1f} s  {outcome.status}  {outcome.test}"
        print(line, file=sys.stderr, flush=True)


def _print_table(backend: str, rows: list[collections.Counter[str]]) -> None:
    heads = ("world size", *COLUMNS, "seconds")
    print(f"PyTorch's suite, backend {backend}")
    print("  ".join(heads))
    for row in rows:
        cells = [row["world_size"], *(row[column] for column in COLUMNS), row["seconds"]]
        print("  ".join(f"{cell:>{len(head)}}" for cell, head in zip(cells, heads, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
