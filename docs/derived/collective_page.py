"""One page for each file of the mapping table: both dialects in two columns, in one language."""

from __future__ import annotations

from collections.abc import Iterator

from derived import markdown, movement, picture, running
from derived.markdown import code, columns, inline, table
from unisono import mapping
from unisono.mapping import Difference, Pair
from unisono.tools.diff.selection import Selection, find
from unisono.tools.diff.wording import (
    Label,
    call_text,
    in_language,
    labels,
    outcome_text,
    version_facts,
)

__all__ = ["index_page", "page"]

_PROGRAM = """\
import numpy as np
import unisono
import unisono.torch.distributed as dist
from unisono.mindspore import communication as comm
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint
from unisono.mindspore.ops import communication


def example():
    rank = dist.get_rank()
    ...  # the lines of an example


unisono.spawn(example, 4)"""

_TEXTS = {
    "en": {
        "caption": "Each rank is a row. The tens of a number tell the rank that it comes from, the "
        "units its position; grey cells hold sums.",
        "numbers": "What the picture shows, as a program, and what it prints on four ranks:",
        "run": "How to run the examples",
        "how": "This page was made by running each example on four ranks. `[0-3]` stands before "
        "lines that all ranks print. To run one, put its lines here:",
        "see": "Example and reason: [{}]({})",
        "torch": "No example here, because gradients need torch: see "
        "[gradients in torch](../torch-gradients.md).",
        "mindspore": "No example here, because gradients need MindSpore: see "
        "[gradients in MindSpore](../mindspore.md#gradients).",
        "launcher": "No example here, because ranks that begin together have started already: see "
        "[the tutorial](../tutorial.md).",
        "terminal": "No example here, because it needs a terminal: see "
        "[debugging one rank](../running.md#debugging-one-rank).",
        "index": "The collectives in both dialects",
        "about": "One page for each collective: what moves, both signatures, each difference with "
        "an example in either dialect, and where the official page is wrong. All of it comes from "
        "the table that `unisono diff` prints, and each output from running the example.",
        "what": "what it does",
        "also_terminal": "In a terminal: `unisono diff {}`",
    },
    "zh": {
        "caption": "每行是一个进程。数字的十位表示它来自哪个进程，个位表示它的位置；灰色格子是求和的结果。",
        "numbers": "下面的程序与图中的数据相同，输出来自四个进程的实际运行：",
        "run": "如何运行示例",
        "how": "生成本页时，每个示例都在四个进程上运行过。`[0-3]` 表示所有进程都输出这一行。"
        "要自己运行，把示例的代码放到这里：",
        "see": "示例与原因见 [{}]({})",
        "torch": "此处没有示例，因为求梯度需要 torch：见 [torch 中的梯度](../torch-gradients.md)。",
        "mindspore": "此处没有示例，因为求梯度需要 MindSpore：见 "
        "[MindSpore 中的梯度](../mindspore.md#梯度)。",
        "launcher": "此处没有示例，因为示例中的进程已经启动：见[教程](../tutorial.md)。",
        "terminal": "此处没有示例，因为需要终端：见 [Debugging one rank]"
        "(../running.md#debugging-one-rank)。",
        "index": "两种写法的集合通信",
        "about": "每个集合通信一页：数据如何移动、两种签名、每处差异及两种写法的示例，以及官方页面的错误。"
        "内容全部来自 `unisono diff` 所用的对照表，输出来自示例的实际运行。",
        "what": "作用",
        "also_terminal": "在终端中查看：`unisono diff {} --lang zh`",
    },
}  # fmt: skip


def index_page(language: str) -> str:
    """Return the page that lists all others."""
    text = _TEXTS[language]
    rows = [[labels(language)("heading", "collective"), text["what"]]]
    rows += [
        [f"[{name}]({name}.md)", inline(in_language(language, entry.title))]
        for name, entry in mapping.load().items()
    ]
    return markdown.document([f"# {text['index']}", text["about"], table(rows)])


def page(name: str, language: str) -> str:
    """Return the page of one file of the table."""
    selection = find(name)
    assert selection is not None
    label = labels(language)
    text = _TEXTS[language]
    blocks = [f"# {name}", inline(in_language(language, selection.entry.title))]
    blocks += _picture(name, language)
    blocks.append(f'??? note "{text["run"]}"\n' + markdown.indent(f"{text['how']}\n\n{code(_PROGRAM)}"))
    blocks.append(f"## {label('heading', 'calls')}")
    for pair in selection.pairs:
        blocks += _pair(selection, pair, label)
    blocks.append(f"## {label('heading', 'differences')}")
    for item in selection.differences:
        blocks += _difference(name, item, language)
    blocks += _faults(selection, language)
    blocks += _rest(selection, language)
    blocks.append(text["also_terminal"].format(name))
    return markdown.document(blocks)


def _picture(name: str, language: str) -> Iterator[str]:
    """Yield the picture, and the program that does what it shows."""
    text = _TEXTS[language]
    if found := movement.movements().get(name):
        caption = f"<figcaption>{text['caption']}</figcaption>"
        yield f'<figure class="movement">{picture.draw(name, found, language)}{caption}</figure>'
    if shown := running.example(name):
        yield text["numbers"]
        yield _programs(shown)


def _programs(pair: running.Pair) -> str:
    return columns(
        *(f"{code(example.source)}\n\n{code(example.shown, 'text')}" for example in pair.values())
    )


def _pair(selection: Selection, pair: Pair, label: Label) -> Iterator[str]:
    """Yield two signatures side by side, then their parameters and results."""
    calls = {call.path: call for call in selection.entry.calls}
    yield f"### {pair.name}"
    sides = [calls[path] if path else None for path in (pair.torch, pair.mindspore)]
    yield columns(*(code(call_text(call)) if call else "—" for call in sides))
    if pair.parameters:
        rows = [["PyTorch", "MindSpore", label("heading", "role"), label("heading", "change")]]
        for row in pair.parameters:
            changes = "; ".join(label("change", change) for change in row.changes)
            names = [f"`{each}`" if each else "—" for each in (row.torch, row.mindspore)]
            rows.append([*names, label("role", row.role), changes or label("heading", "same")])
        yield f"**{label('heading', 'parameters')}**"
        yield table(rows)
    if pair.results:
        rows = [[label("heading", "when"), "PyTorch", "MindSpore"]]
        for result in pair.results:
            outcomes = [inline(outcome_text(each, label)) for each in (result.torch, result.mindspore)]
            when = f"{inline(label('mode', result.mode))}, {label('rank', result.rank)}"
            rows.append([when, *outcomes])
        yield f"**{label('heading', 'results')}**"
        yield table(rows)


def _difference(name: str, item: Difference, language: str) -> Iterator[str]:
    """Yield one difference with its examples; one of another page refers to it."""
    label, text = labels(language), _TEXTS[language]
    home, _, short = item.id.partition(".")
    anchor = markdown.anchor(item.id)
    yield f"### {label('kind', item.kind)}: `{short}` {{ #{anchor} }}"
    yield inline(in_language(language, item.text))
    if home != name:
        yield text["see"].format(item.id, f"{home}.md#{anchor}")
        return
    yield f"*{label('heading', 'why')}*: {inline(in_language(language, item.reason))}"
    if shown := running.pair(item.id):
        yield _programs(shown)
    else:
        yield text[str(running.without(item.id))]


def _faults(selection: Selection, language: str) -> Iterator[str]:
    """Yield what the official pages say wrongly."""
    if not selection.faults:
        return
    label = labels(language)
    yield f"## {label('heading', 'faults')}"
    if selection.entry.pages:
        yield ", ".join(f"`{each}`" for each in selection.entry.pages)
    rows = [[label("heading", key) for key in ("page", "software", "unisono")]]
    rows += [
        [
            inline(in_language(language, fault.page)),
            inline(in_language(language, fault.software)),
            label("side", fault.unisono),
        ]
        for fault in selection.faults
    ]
    yield table(rows)


def _rest(selection: Selection, language: str) -> Iterator[str]:
    """Yield gradients, other calls, versions, and what unisono lacks."""
    label = labels(language)
    if keys := dict.fromkeys(call.gradient for call in selection.calls if call.gradient):
        yield f"## {label('heading', 'gradients')}"
        rows = [[label("heading", "collective"), label("heading", "backward")]]
        for key in keys:
            paths = [f"`{call.path}`" for call in selection.calls if call.gradient == key]
            rows.append([", ".join(paths), inline(label("gradient", key))])
        yield table(rows)
    if selection.others:
        yield f"## {label('heading', 'also')}"
        yield "\n".join(
            f"- `{call.path}{call.signature}`: {label('style', call.style)}"
            for call in selection.others
        )
    facts = {call.path: "; ".join(version_facts(call, label)) for call in selection.calls}
    if any(facts.values()):
        yield f"## {label('heading', 'versions')}"
        yield "\n".join(f"- `{path}`: {inline(fact)}" for path, fact in facts.items() if fact)
        checked = mapping.vocabulary()["checked"]
        yield (
            f"{label('heading', 'checked')} torch {checked['torch']}, "
            f"MindSpore {checked['mindspore']}"
        )
    if selection.entry.missing:
        yield f"## {label('heading', 'missing')}"
        rows = [[label("heading", "calls"), label("heading", "why"), label("heading", "nearest")]]
        for item in selection.entry.missing:
            nearest = f"`{item.nearest}`" if item.nearest else "—"
            rows.append([f"`{item.path}`", inline(in_language(language, item.reason)), nearest])
        yield table(rows)
