"""The page of sharp edges: wrong and right beside each other, with what both print."""

from __future__ import annotations

from derived import markdown, running
from derived.examples import sharp_edges
from derived.markdown import code

__all__ = ["page"]

#: By the name of the examples: title and explanation, in each language.
_EDGES = {
    "lost_result": {
        "en": ("A result that nobody takes", "`comm_func` returns new tensors. Without an "
               "assignment the result is lost, and nothing says so."),
        "zh": ("没有接住的结果", "`comm_func` 返回新张量。不赋值，结果就丢失了，而且没有任何提示。"),
    },
    "second_name": {
        "en": ("A second name for a tensor", "After `x, _ = ...` the name `x` means a new tensor. "
               "Other names still mean the old one."),
        "zh": ("张量的另一个名称", "`x, _ = ...` 之后，`x` 指向新张量，其他名称仍指向旧张量。"),
    },
    "copy": {
        "en": ("A copy instead of a view", "A call in place writes into what it is given. If that "
               "is a copy, your tensor does not change."),
        "zh": ("传入的是副本", "就地写入的调用只写传入的张量。传入副本时，原来的张量不会改变。"),
    },
    "early_look": {
        "en": ("Looking before `wait`", "With `async_op=True` the tensor belongs to the call until "
               "`wait` returns: do not read it, write it or free it before."),
        "zh": ("在 `wait` 之前读取", "`async_op=True` 时，`wait` 返回之前张量归这次调用使用："
               "不要读、写或释放它。"),
    },
    "some_ranks": {
        "en": ("Only some ranks call", "A collective is one call of all ranks of the group. Under "
               "`if rank == 0` it waits for ranks that never come: elsewhere for ever, here until "
               "they end or the deadline passes."),
        "zh": ("只有部分进程调用", "集合通信要由组内所有进程一起调用。放在 `if rank == 0` 之下，"
               "它会等待永远不来的进程：在别处会一直等下去，在这里等到它们结束或超时为止。"),
    },
    "group_ranks": {
        "en": ("Ranks inside a group", "`src` and `dst` are ranks of the world in both dialects, "
               "also in a smaller group."),
        "zh": ("组内的编号", "两种写法中 `src` 与 `dst` 都是全局编号，在较小的组内也一样。"),
    },
    "small_integers": {
        "en": ("Small integers", "A sum has the dtype of its operands, and integers wrap around as "
               "in NumPy and C."),
        "zh": ("位数较少的整数", "求和结果的类型与操作数相同，整数溢出时回绕，与 NumPy 和 C 一致。"),
    },
    "sum_or_mean": {
        "en": ("Sum or mean", "The default operator is the sum. A learning rate that suits one rank "
               "is too large for the sum of four."),
        "zh": ("求和还是平均", "默认的规约操作是求和。适合单个进程的学习率，对四个进程之和来说太大。"),
    },
}  # fmt: skip
_TEXTS = {
    "en": {
        "title": "Sharp edges",
        "about": "What goes wrong easily with collectives. The output below each program is what "
        "it printed on four ranks when this page was made; "
        "[how to run one](collectives/all_reduce.md).",
        "sides": ("wrong", "right"),
    },
    "zh": {
        "title": "容易出错的地方",
        "about": "使用集合通信时容易犯的错误。每段程序下方是生成本页时在四个进程上的实际输出；"
        "[如何运行](collectives/all_reduce.md)。",
        "sides": ("错误", "正确"),
    },
}


def page(language: str) -> str:
    """Return the page in one language."""
    text = _TEXTS[language]
    blocks = [f"# {text['title']}", text["about"]]
    for name, texts in _EDGES.items():
        title, explanation = texts[language]
        blocks += [f"## {title}", explanation]
        shown = [running.run(getattr(sharp_edges, f"{name}_{side}")) for side in ("wrong", "right")]
        programs = [f"{code(each.source)}\n\n{code(each.shown, 'text')}" for each in shown]
        marks = zip(("✗", "✓"), text["sides"], strict=True)
        titles = [f"{mark} {side}" for mark, side in marks]
        blocks.append(markdown.columns(*programs, titles=titles))
    return markdown.document(blocks)
