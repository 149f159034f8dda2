"""Pages of the API: names, signatures and docstrings of the public modules."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import textwrap
from typing import Any

from derived import markdown
from derived.markdown import code, table

__all__ = ["MODULES", "index_page", "page", "path"]

#: The public modules, and what each is for.
MODULES = {
    "unisono": {"en": "Starting ranks, shared arrays, errors.", "zh": "启动进程、共享数组、错误。"},
    "unisono.torch.distributed": {
        "en": "The PyTorch face.",
        "zh": "PyTorch 的写法。",
    },
    "unisono.torch.distributed.nn.functional": {
        "en": "Collectives that torch's autograd differentiates.",
        "zh": "torch 的 autograd 可以求导的集合通信。",
    },
    "unisono.mindspore.communication": {
        "en": "The MindSpore face: start, ranks and groups.",
        "zh": "MindSpore 的写法：启动、编号与通信组。",
    },
    "unisono.mindspore.communication.comm_func": {
        "en": "The MindSpore face: collectives that return new tensors.",
        "zh": "MindSpore 的写法：返回新张量的集合通信。",
    },
    "unisono.mindspore.mint.distributed": {
        "en": "The MindSpore face: collectives in place, as in torch.",
        "zh": "MindSpore 的写法：与 torch 一样就地写入的集合通信。",
    },
    "unisono.mindspore.ops.communication": {
        "en": "The MindSpore face: what replaces comm_func.",
        "zh": "MindSpore 的写法：comm_func 的替代模块。",
    },
    "unisono.mindspore.ops": {
        "en": "The MindSpore face: primitives, built once and called later.",
        "zh": "MindSpore 的写法：原语，先构造，后调用。",
    },
    "unisono.errors": {"en": "Every error.", "zh": "所有错误。"},
}
_TEXTS = {
    "en": {
        "title": "API",
        "about": "Names, signatures and arguments of the faces are those of torch 2.13 and "
        "MindSpore 2.10. Each example is run by the tests.",
        "module": "module",
        "what": "has",
    },
    "zh": {
        "title": "API",
        "about": "各接口的名称、签名与参数同 torch 2.13 与 MindSpore 2.10。说明取自程序中的英文文档，"
        "其中的示例都由测试运行。",
        "module": "模块",
        "what": "内容",
    },
}


def path(module: str) -> str:
    """Return the file name of a module's page, without its suffix."""
    return module.replace(".", "-")


def index_page(language: str) -> str:
    """Return the list of modules."""
    text = _TEXTS[language]
    rows = [[text["module"], text["what"]]]
    rows += [[f"[`{name}`]({path(name)}.md)", about[language]] for name, about in MODULES.items()]
    return markdown.document([f"# {text['title']}", text["about"], table(rows)])


def page(name: str, language: str) -> str:
    """Return the page of a module: what it is, and each of its names."""
    module = importlib.import_module(name)
    blocks = [f"# {name}", MODULES[name][language], _docstring(module)]
    for member in sorted(module.__all__, key=str.lower):
        blocks += _member(member, getattr(module, member))
    return markdown.document(filter(None, blocks))


def _member(name: str, value: Any) -> list[str]:
    title = f"## {name.replace('__', chr(92) + '_' + chr(92) + '_')}"
    if inspect.ismodule(value):
        return [title, f"`{value.__name__}`"]
    if not callable(value):
        return [title, code(f"{name} = {value!r}")]
    blocks = [title, code(f"{_kind(value)}{name}{_signature(value)}"), _docstring(value)]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for method, function in sorted(vars(value).items()):
            if not method.startswith("_") and inspect.isfunction(function):
                blocks += [f"### {name}.{method}", code(f"{method}{_signature(function)}")]
                blocks.append(_docstring(function))
    return blocks


def _kind(value: Any) -> str:
    return "class " if inspect.isclass(value) else ""


def _signature(value: Any) -> str:
    """Write the parameters; annotations would make the line hard to read."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        bases = [base.__name__ for base in value.__bases__]
        return f"({', '.join(bases)})"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    bare = found.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return re.sub(r" at 0x[0-9a-f]+", "", str(bare))


def _docstring(value: Any) -> str:
    """Turn a docstring into Markdown: examples and drawings become blocks of code."""
    text = inspect.getdoc(value) or ""
    blocks: list[str] = []
    for piece in doctest.DocTestParser().parse(text):
        if isinstance(piece, str):
            blocks += [_paragraph(each) for each in re.split(r"\n\s*\n", piece) if each.strip()]
            continue
        lines = textwrap.indent(piece.source, "... ").splitlines()
        shown = "\n".join([f">>> {lines[0][4:]}", *lines[1:]]) + "\n" + piece.want
        if blocks and blocks[-1].startswith("```pycon"):
            blocks[-1] = blocks[-1].removesuffix("\n```") + f"\n{shown.rstrip()}\n```"
        else:
            blocks.append(code(shown.rstrip(), "pycon"))
    return "\n\n".join(blocks)


def _paragraph(text: str) -> str:
    text = text.strip("\n")
    is_drawing = "├" in text or all(line.startswith("    ") for line in text.splitlines())
    return code(textwrap.dedent(text), "text") if is_drawing else text
