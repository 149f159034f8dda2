"""Carry out decisions on the source, with LibCST: what is not changed stays as it was written."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any, cast

import libcst as cst
from libcst.matchers import Comment, findall
from libcst.metadata import MetadataWrapper, PositionProvider

from unisono.errors import Unsupported
from unisono.port.imports.changes import ImportChanges, Part
from unisono.port.kept_parts import comments_in, last_argument, part_of
from unisono.port.plan import ARGUMENT, Action, Decision, Plan
from unisono.port.program import SourceFile

__all__ = ["MARK", "rewrite"]

#: How the comment above a call that stays begins.
MARK = "# unisono port: "
_LONGEST_MARK = 150

_Range = tuple[int, int, int, int]


def rewrite(file: SourceFile, decisions: Sequence[Decision], imports: ImportChanges) -> str:
    """Return the source of a file after decisions were carried out."""
    changes = _Changes(file, decisions, imports)
    if not changes.any:
        return file.source
    try:
        wrapper = MetadataWrapper(cst.parse_module(file.source), unsafe_skip_copy=True)
        rewriter = _Rewriter(changes, wrapper.module)
        source = wrapper.visit(rewriter).code
        # A change that breaks the program, or that is made by half, must not leave this function.
        ast.parse(source)
    except (cst.ParserSyntaxError, cst.CSTValidationError, SyntaxError) as error:
        text = " ".join(str(error).split())
        raise Unsupported(f"{file.path}: LibCST cannot change it; not ported: {text}") from error
    except KeyError as error:
        _raise_interrupt(error)
        raise
    if missing := changes.places - rewriter.done:
        line = min(missing)[0]
        raise Unsupported(f"{file.path}:{line}: LibCST and Python see different code; not ported")
    return source


def _raise_interrupt(error: BaseException | None) -> None:
    """Raise a KeyboardInterrupt that LibCST has answered with an error of its own."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            raise error from None
        error = error.__context__


class _Changes:
    """All changes of a file, by the place of what they change."""

    def __init__(
        self, file: SourceFile, decisions: Sequence[Decision], imports: ImportChanges
    ) -> None:
        self.file, self.imports = file, imports
        self.calls: dict[_Range, Plan] = {}
        self.names: dict[_Range, str] = {}
        self.statements: dict[_Range, tuple[_Range, tuple[str, ...]]] = {}
        #: Lines before statements, each with the place of the call that it makes, if it makes one.
        self.before: dict[_Range, list[tuple[_Range | None, str]]] = {}
        self.later: dict[_Range, list[str]] = {}
        self.replaced: dict[_Range, tuple[str, ...]] = {}
        #: Texts in place of expressions, each with the place of the call in it.
        self.values: dict[_Range, tuple[_Range | None, str]] = {}
        self.marks: dict[int, str] = {}
        self.touched: set[int] = set()  # lines whose old marks go
        self.imported = {
            self.place(statement): lines for statement, lines in imports.statements.items()
        }
        for decision in sorted(decisions, key=_evaluated):
            self._add(decision)

    @property
    def any(self) -> bool:
        return bool(self.places or self.marks)

    @property
    def places(self) -> set[_Range]:
        """Return all places where something has to change."""
        found = {*self.calls, *self.names, *self.imported, *self.statements, *self.replaced}
        return {*found, *self.before, *self.later, *self.values}

    def place(self, node: Any) -> _Range:
        """Return the place of a node as LibCST counts it: in characters, not in bytes."""
        start, end = node.lineno, node.end_lineno
        return (
            start,
            self._column(start, node.col_offset),
            end,
            self._column(end, node.end_col_offset),
        )

    def _column(self, line: int, offset: int) -> int:
        text = self.file.lines[line - 1]
        return offset if text.isascii() else len(text.encode()[:offset].decode())

    def _add(self, decision: Decision) -> None:
        reference, plan = decision.reference, decision.plan
        statement = self.file.scopes.statement(reference.node)
        if decision.verdict == Action.LEAVE:
            self.marks.setdefault(statement.lineno, _mark(decision.reason))
        if plan is None:
            return
        self.touched.add(statement.lineno)
        for expression, text in plan.values:
            made = self.place(reference.call) if "{call}" in text else None
            self.values[self.place(expression)] = (made, self.imports.fill(text))
        if not plan.function:
            return
        if plan.arguments is None or reference.call is None:
            module, _, name = plan.function.rpartition(".")
            words = [
                self.imports.names[module],
                name,
                *([reference.rest] if reference.rest else []),
            ]
            self.names[self.place(reference.node)] = ".".join(words)
            return
        place = self.place(reference.call)
        self.calls[place] = plan
        if plan.statements:
            lines = tuple(map(self.imports.fill, plan.statements))
            self.statements[self.place(plan.at or statement)] = (place, lines)
        for other, texts in plan.before:
            lines_before = self.before.setdefault(self.place(other), [])
            lines_before += [
                (place if "{call}" in text else None, self.imports.fill(text)) for text in texts
            ]
        for other, texts in plan.later:
            lines_there = self.later.setdefault(self.place(other), [])
            new = [self.imports.fill(text) for text in texts]
            # Several calls whose handles are in one list share what follows the wait.
            lines_there += [line for line in new if line not in lines_there]
        for other, texts in plan.replaced:
            self.touched.add(other.lineno)
            self.replaced[self.place(other)] = tuple(map(self.imports.fill, texts))


def _evaluated(decision: Decision) -> tuple[int, int]:
    """Return where the evaluation of a use ends: what is inside a call comes before the call."""
    node = decision.reference.call or decision.reference.node
    return node.end_lineno or 0, node.end_col_offset or 0


def _mark(reason: str) -> str:
    # The numbers of lines change while a file is ported, and would be others the second time.
    reason = re.sub(r"\bline \d+", "another line", " ".join(reason.split()))
    text = f"{MARK}left as it is: {reason}"
    return text if len(text) <= _LONGEST_MARK else f"{text[: _LONGEST_MARK - 3]}..."


class _Rewriter(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, changes: _Changes, module: cst.Module) -> None:
        super().__init__()
        self.changes, self.module = changes, module
        self.codes: dict[_Range, str] = {}  # of new calls
        self.became: dict[_Range, str] = {}  # what is in place of expressions
        self.done: set[_Range] = set()
        self.gone: list[cst.SimpleStatementLine] = []

    def _place(self, node: cst.CSTNode) -> _Range:
        found = self.get_metadata(PositionProvider, node)
        return (found.start.line, found.start.column, found.end.line, found.end.column)

    # ---- expressions ----

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:  # noqa: N802
        place = self._place(original_node)
        plan = self.changes.calls.get(place)
        if plan is None:
            return updated_node
        self.done.add(place)
        imports = self.changes.imports
        module, _, name = plan.function.rpartition(".")
        function = imports.fill(plan.callee) if plan.callee else f"{imports.names[module]}.{name}"
        for number, argument in enumerate(updated_node.args):
            text = ARGUMENT.format(number)
            if text in function:
                function = function.replace(text, self.module.code_for_node(argument.value))
        new = updated_node.with_changes(
            func=cst.parse_expression(function),
            args=self._arguments(updated_node, plan),
        )
        if not new.args and updated_node.args:
            new = new.with_changes(whitespace_before_args=cst.SimpleWhitespace(""))
        self.codes[place] = self.module.code_for_node(new)
        return new

    def _arguments(self, call: cst.Call, plan: Plan) -> list[cst.Arg]:
        found = []
        for argument in plan.arguments or ():
            keyword = cst.Name(argument.keyword) if argument.keyword else None
            old = None if argument.old is None else call.args[argument.old]
            if argument.text is not None:
                text = self._filled(self.changes.imports.fill(argument.text))
                value = cst.parse_expression(text)
                new = old.with_changes(value=value) if old else cst.Arg(value)
            else:
                assert old is not None
                new = old
            equal: cst.AssignEqual | cst.MaybeSentinel = new.equal
            if new.keyword is None and keyword is not None:
                equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
            elif keyword is None:
                equal = cst.MaybeSentinel.DEFAULT
            found.append(new.with_changes(keyword=keyword, equal=equal))
        if plan.arguments and plan.arguments[-1].old != len(call.args) - 1:
            found[-1] = last_argument(found[-1], call)
        # An argument that stood last has no comma, and one that stands last now may have a space.
        return [
            argument.with_changes(comma=cst.MaybeSentinel.DEFAULT)
            if self._is_plain(argument, last=number == len(found) - 1)
            else argument
            for number, argument in enumerate(found)
        ]

    def _is_plain(self, argument: cst.Arg, last: bool) -> bool:
        """Tell whether an argument has no comma, or one that nothing but spaces follow."""
        if isinstance(argument.comma, cst.MaybeSentinel):
            return True
        return last and isinstance(argument.comma.whitespace_after, cst.SimpleWhitespace)

    def _renamed(self, original: cst.CSTNode, updated: cst.BaseExpression) -> cst.BaseExpression:
        place = self._place(original)
        text = self.changes.names.get(place)
        if text is None:
            return updated
        self.done.add(place)
        return cst.parse_expression(text)

    def leave_Attribute(  # noqa: N802
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return self._renamed(original_node, updated_node)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:  # noqa: N802
        return self._renamed(original_node, updated_node)

    # ---- statements ----

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        place = self._place(original_node.body[0])
        lines = self._lines(place) if len(original_node.body) == 1 else None
        leading = self._leading(updated_node.leading_lines, place[0])
        if len(original_node.body) > 1:
            return self._several(original_node, updated_node).with_changes(leading_lines=leading)
        if lines is None:
            new: list[Any] = [updated_node.with_changes(leading_lines=())]
        else:
            new = [self._line(line, updated_node, n) for n, line in enumerate(lines)]
        before = self._before(place)
        if before and place[0] in self.changes.marks:  # it stands above the statement itself
            new[0] = new[0].with_changes(leading_lines=[leading.pop()])
        new = [*before, *new]
        if place in self.changes.later:
            self.done.add(place)
            new += [self._parse(line) for line in self.changes.later[place]]
        if not new:
            # Comments above outlive the statement; the block gives them to the next one.
            comments = [line for line in leading if line.comment]
            if place in self.changes.replaced:  # of an import that goes, they go too
                inside = findall(updated_node.with_changes(leading_lines=[]), Comment())
                comments += [cst.EmptyLine(comment=cast(cst.Comment, one)) for one in inside]
            gone = cst.SimpleStatementLine([cst.Pass()], comments)
            self.gone.append(gone)
            return gone
        new[0] = new[0].with_changes(leading_lines=leading)
        if lines and isinstance(lines[0], Part):
            pass  # the comment behind an import stays with what stays of it
        elif lines is not None and isinstance(new[-1], cst.SimpleStatementLine):
            new[-1] = new[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        elif lines is not None and updated_node.trailing_whitespace.comment is not None:
            comment = cst.EmptyLine(comment=updated_node.trailing_whitespace.comment)
            new[0] = new[0].with_changes(leading_lines=[*leading, comment])
        if place[0] in self.changes.touched:
            lost = comments_in([original_node], MARK) - comments_in(new, MARK)
            above = [cst.EmptyLine(comment=cst.Comment(text)) for text in lost.elements()]
            new[0] = new[0].with_changes(leading_lines=[*new[0].leading_lines, *above])
        return cst.FlattenSentinel(new)

    def _before(self, place: _Range) -> list[Any]:
        found = self.changes.before.get(place, [])
        self.done |= {place} if found else set()
        return [self._parse(self._filled(line, call)) for call, line in found]

    def _line(self, line: str | Part, whole: cst.SimpleStatementLine, number: int) -> Any:
        """Return a new statement: parsed, or a part of the import that was there."""
        if isinstance(line, str):
            return self._parse(line)
        small = cast(cst.Import | cst.ImportFrom, whole.body[0])
        behind = cst.TrailingWhitespace() if number else whole.trailing_whitespace
        return whole.with_changes(
            body=[part_of(small, line)], leading_lines=(), trailing_whitespace=behind
        )

    def _lines(self, place: _Range) -> tuple[str | Part, ...] | None:
        if place in self.changes.imported:
            self.done.add(place)
            return self.changes.imported[place]
        if place in self.changes.replaced:
            self.done.add(place)
            return self.changes.replaced[place]
        if place in self.changes.statements:
            self.done.add(place)
            call, lines = self.changes.statements[place]
            return tuple(self._filled(line, call) for line in lines)
        return None

    def _filled(self, text: str, call: _Range | None = None) -> str:
        """Put the code of a call, and of expressions that have changed, into a text."""
        if call is not None:
            text = text.replace("{call}", self.codes[call])
        for node, mark in self.changes.file.changed.items():
            if mark in text:
                text = text.replace(mark, self.became[self.changes.place(node)])
        return text

    def _parse(self, text: str) -> Any:
        return cst.parse_statement(text, config=self.module.config_for_parsing)

    def leave_SimpleStatementSuite(  # noqa: N802
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        return cast(cst.BaseSuite, self._several(original_node, updated_node))

    def _several(self, original: Any, updated: Any) -> Any:
        """Change statements that share a line."""
        small: list[Any] = []
        for old, new in zip(original.body, updated.body, strict=True):
            place = self._place(old)
            lines = self._lines(place)
            if lines is None:
                small.append(new)
            later = self.changes.later.get(place, [])
            self.done |= {place} if later else set()
            for line in (*(lines or ()), *later):
                small += [part_of(new, line)] if isinstance(line, Part) else self._parse(line).body
        if len(small) == len(updated.body):
            pairs = zip(small, updated.body, strict=True)
            small = [new.with_changes(semicolon=old.semicolon) for new, old in pairs]
        else:
            small = [one.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for one in small]
        return updated.with_changes(body=small or [cst.Pass()])

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Put texts in place of expressions, and marks and statements above compound statements."""
        result = super().on_leave(original_node, updated_node)
        if self.changes.values and isinstance(original_node, cst.BaseExpression):
            place = self._place(original_node)
            if place in self.changes.values:
                self.done.add(place)
                call, text = self.changes.values[place]
                self.became[place] = text = self._filled(text, call)
                new: Any = cst.parse_expression(text)
                around: Any = original_node
                return new.with_changes(
                    lpar=[*around.lpar, *new.lpar], rpar=[*new.rpar, *around.rpar]
                )
        if isinstance(result, cst.BaseCompoundStatement) and hasattr(result, "leading_lines"):
            place = self._place(original_node)
            leading = self._leading(result.leading_lines, place[0])
            before = self._before(place)
            if not before:
                return cast(Any, result).with_changes(leading_lines=leading)
            own = [leading.pop()] if place[0] in self.changes.marks else []
            before[0] = before[0].with_changes(leading_lines=leading)
            return cst.FlattenSentinel([*before, cast(Any, result).with_changes(leading_lines=own)])
        return result

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        return cast(cst.BaseSuite, self._without_gone(updated_node))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        return cast(cst.Module, self._without_gone(updated_node))

    def _without_gone(self, block: Any) -> Any:
        """Leave statements out, and give the comments above them to the next ones."""
        if not any(statement is gone for statement in block.body for gone in self.gone):
            return block
        body: list[Any] = []
        comments: list[cst.EmptyLine] = []
        for statement in block.body:
            lines = [*comments, *statement.leading_lines]
            if any(statement is gone for gone in self.gone):
                comments = lines
            else:
                body.append(statement.with_changes(leading_lines=lines))
                comments = []
        if not body and isinstance(block, cst.IndentedBlock):
            body, comments = [cst.SimpleStatementLine([cst.Pass()], comments)], []
        return block.with_changes(body=body, footer=[*comments, *block.footer])

    def _leading(self, lines: Sequence[cst.EmptyLine], number: int) -> list[cst.EmptyLine]:
        """Return the comments above a statement, with the mark that it has to have."""
        mark = self.changes.marks.get(number)
        if mark is None and number not in self.changes.touched:
            return list(lines)
        kept = [
            line for line in lines if not (line.comment and line.comment.value.startswith(MARK))
        ]
        return [*kept, cst.EmptyLine(comment=cst.Comment(mark))] if mark else kept
