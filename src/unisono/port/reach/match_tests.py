"""Match statements as tests."""

from __future__ import annotations

import ast

__all__ = ["as_tests"]


def as_tests(match: ast.Match) -> list[ast.stmt]:
    """Write a match statement as tests, so far as its patterns are values; others are not tests."""
    chain: list[ast.stmt] = []
    for case in reversed(match.cases):
        test = _pattern_test(match.subject, case.pattern)
        if case.guard is not None:
            test = case.guard if test is None else ast.BoolOp(ast.And(), [test, case.guard])
        if test is None:
            chain = case.body
            continue
        made = ast.If(test, case.body, chain)
        made.lineno, made.end_lineno = match.lineno, match.end_lineno
        made.col_offset, made.end_col_offset = match.col_offset, match.end_col_offset
        chain = [made]
    return chain


def _pattern_test(subject: ast.expr, pattern: ast.pattern) -> ast.expr | None:
    """Return the test of a pattern; None if it takes everything."""
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(subject, [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)])
    if isinstance(pattern, ast.MatchOr):
        tests = [_pattern_test(subject, each) for each in pattern.patterns]
        known = [test for test in tests if test is not None]
        return ast.BoolOp(ast.Or(), known) if len(known) == len(tests) else None
    if isinstance(pattern, ast.MatchAs):
        return None if pattern.pattern is None else _pattern_test(subject, pattern.pattern)
    return ast.Name(f"a pattern in line {pattern.lineno}", ast.Load())
