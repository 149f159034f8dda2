"""The page of errors: what each means, what to do, and a program that gets it."""

from __future__ import annotations

import re

from derived import markdown, running
from derived.examples import errors as examples
from derived.markdown import code
from unisono import errors

__all__ = ["page"]

#: By the name of the error: what it means in Chinese, and what to do in either language. What it
#: means in English is its docstring.
_ADVICE = {
    "UnisonoError": (
        "所有错误的根：捕获它，就能捕获 unisono 主动抛出的一切错误。",
        "Catch it around a whole step, if any failure means the same to you.",
        "如果任何失败的处理方式都相同，在整个步骤外捕获它。",
    ),
    "ArgumentError": (
        "值不正确：形状、数量、根进程或重叠的内存。",
        "Nothing has moved yet, on this rank. Correct the argument that the text names.",
        "此时本进程尚未传输任何数据。请改正错误信息指出的参数。",
    ),
    "ArgumentTypeError": (
        "类型不正确：不是张量，或该类型的数据不能发送。",
        "Pass a tensor, or convert it to a dtype that the text allows.",
        "请传入张量，或转换为错误信息允许的类型。",
    ),
    "Unsupported": (
        "请求合理，但这个引擎或数据类型做不到。",
        "Convert the tensor, or take another engine; `unisono doctor --gaps` lists what each lacks.",
        "转换张量，或换用其他引擎；`unisono doctor --gaps` 列出各引擎的不足。",
    ),
    "NotReady": (
        "尚未初始化，或已经关闭，或本进程不在组内。",
        "Call `init_process_group` or `init` first, and no collective after the end.",
        "先调用 `init_process_group` 或 `init`；结束之后不要再调用集合通信。",
    ),
    "LaunchError": (
        "进程之间找不到对方，或引擎无法在此启动。",
        "Start all ranks with the same launcher, size and address; `unisono doctor` tests the host.",
        "用同一启动器、相同的进程数和地址启动所有进程；`unisono doctor` 会检查本机。",
    ),
    "OutOfSharedMemory": (
        "主机没有足够的共享内存；错误信息说明需要多少。",
        "Give the container more memory (`docker run --shm-size`), or start fewer ranks.",
        "给容器更多共享内存（`docker run --shm-size`），或减少进程数。",
    ),
    "MismatchError": (
        "各进程在集合通信、顺序、数据类型、数量、操作或根进程上不一致。",
        "Compare the two lines of your program that the text names. The group can be used afterwards.",
        "对照错误信息指出的两行代码。之后该组仍可使用。",
    ),
    "PeerLost": (
        "某个进程已结束、关闭了组，或放弃了其他进程所在的调用。",
        "Read the output of the rank that `error.ranks` names: it failed first. Survivors can go on "
        "with [`shrink_group`](running.md#going-on-without-it).",
        "查看 `error.ranks` 所指进程的输出：它最先出错。其余进程可以用 "
        "[`shrink_group`](running.md#going-on-without-it) 继续。",
    ),
    "CommTimeout": (
        "超过了时限；错误信息指出缺少哪些进程。",
        "See what the missing ranks do: `unisono top` while the job runs, `unisono trace FILE` "
        "afterwards. If they only need longer, raise `UNISONO_TIMEOUT`.",
        "查看缺少的进程在做什么：运行时用 `unisono top`，之后用 `unisono trace FILE`。"
        "如果只是需要更久，请增大 `UNISONO_TIMEOUT`。",
    ),
    "RankFailed": (
        "由 `unisono.spawn` 或测试启动的进程抛出了异常或已结束。",
        "Its notes name the rank. The text has the signal or the exit code if the process died.",
        "附注指出是哪个进程；若进程已结束，错误信息给出信号或退出码。",
    ),
}
_TEXTS = {
    "en": {
        "title": "What each error means",
        "about": "All errors of unisono are one tree. Most are also the type that the framework "
        "would raise, so a program that catches `ValueError` or `TimeoutError` goes on to work. An "
        "error says what happened, then in which call and group; `error.ranks` names the ranks "
        "that it is about.",
        "also": "Also a",
        "do": "What to do",
        "prints": "A program that gets it, and what it printed on four ranks:",
        "ddp": "In DDP's backward pass torch turns each error into a `RuntimeError`; "
        "`unisono.errors.cause(error)` finds the one behind it.",
    },
    "zh": {
        "title": "每种错误的含义",
        "about": "unisono 的所有错误构成一棵树。其中大多数同时也是框架会抛出的类型，因此捕获 `ValueError` 或 "
        "`TimeoutError` 的程序无需修改。错误先说明发生了什么，再说明在哪次调用、哪个组；`error.ranks` 给出相关的进程。",
        "also": "同时也是",
        "do": "怎么办",
        "prints": "会得到该错误的程序，以及它在四个进程上的输出：",
        "ddp": "在 DDP 的反向过程中，torch 把每个错误都变成 `RuntimeError`；"
        "`unisono.errors.cause(error)` 可以找到原来的错误。",
    },
}  # fmt: skip


def page(language: str) -> str:
    """Return the page in one language."""
    text = _TEXTS[language]
    tree = str(errors.__doc__).split("\n\n")[1]
    blocks = [f"# {text['title']}", text["about"], code(tree, "text"), text["ddp"]]
    for name, (chinese, *advice) in _ADVICE.items():
        kind = getattr(errors, name)
        meaning = str(kind.__doc__).partition("\n")[0] if language == "en" else chinese
        blocks += [f"## {name}", meaning]
        builtin = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        if builtin and name != "UnisonoError":
            blocks.append(f"{text['also']} `{builtin[0]}`.")
        blocks.append(f"**{text['do']}**: {advice[language == 'zh']}")
        program = getattr(examples, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
        if program:
            shown = running.run(program)
            blocks += [text["prints"], code(shown.source), code(shown.shown, "text")]
    return markdown.document(blocks)
