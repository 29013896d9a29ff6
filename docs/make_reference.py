"""Entries of the reference, made from signatures and docstrings.

A page of docs/reference has lines such as

    <!-- entries: tilec.builtins.atomics -->
    <!-- entries: tilec.language Kernel program_id -->

Behind each the site has the entries of that module's `__all__`, or of the names that follow (which
may be patterns, `*Error`); what the page says above them (shapes, dtypes, targets, errors) holds
for all of them.
`docs/make_site.py` puts them there when the site is built; `tests/test_reference.py` holds that
every word of `tilec.language` and every name of `tilec` is on a page.
"""

from __future__ import annotations

import ast
import enum
import fnmatch
import functools
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilec.builtins
import tilec.language as T
from tilec.builtins.annotations import Macro
from tilec.ir.types import DType

ROOT = Path(__file__).parent.parent
PAGES = Path(__file__).parent / "reference"
DIRECTIVE = re.compile(r"^<!-- entries: (\S+)((?: [\w*]+)*) -->$", re.MULTILINE)
FACTS = ("Shapes", "Dtypes", "Targets", "Errors")  # what a page says of all its words
# Of classes with parts that other modules of tilec use, what is a user's.
MEMBERS = {
    "tilec.Kernel": "compile recommend parts parameters compile_with_plan clear",
    "tilec.CompiledKernel": "asm plan parameters name target resources binary save export_c",
}
MOST_LINES = 36  # of an example
_ROW = re.compile(r"^(\w+(?:, \w+)*)  +(\S.*)$")
_WIDTH = 88


def modules_of_words() -> list[str]:
    """The modules of builtins whose `__all__` is the language's."""
    names = [m.name for m in pkgutil.iter_modules(tilec.builtins.__path__)]
    return [f"tilec.builtins.{n}" for n in names if n not in ("foreign", "elementwise")]


def words() -> set[str]:
    """The public names of `tilec.language`."""
    found = {n for m in modules_of_words() for n in importlib.import_module(m).__all__}
    for name, value in vars(T).items():
        here = getattr(value, "__module__", "") == T.__name__ and value is not T.NotYet
        dtype = isinstance(value, DType) and not name.isupper()
        if not name.startswith("_") and (here or dtype):
            found.add(name)
    return {n for n in found if hasattr(T, n)}


def listed(page: str) -> list[tuple[str, str]]:
    """(module, name) of each entry that a page's text asks for."""
    found = []
    for module, asked in DIRECTIVE.findall(page):
        try:
            known = importlib.import_module(module).__all__ if "*" in asked or not asked else ()
        except ImportError:  # as in `with_entries`
            continue
        for pattern in asked.split() or ["*"]:
            names = fnmatch.filter(known, pattern) if "*" in pattern else [pattern]
            found += [(module, n) for n in names]
    return found


def with_entries(page: str) -> str:
    """A page's text with the entries behind its directives."""

    def entries(match: re.Match[str]) -> str:
        module = match[1]
        try:
            importlib.import_module(module)
        except ImportError as e:  # of a package that tilec does not need
            return f"`{module}` is not shown: {e}."
        names = listed(match[0])
        if all(isinstance(getattr(T, name, None), DType) for _, name in names):
            return dtypes([name for _, name in names])
        return "\n".join(entry(module, name) for module, name in names)

    here = {name for module, name in listed(page) if is_word(module)}

    def link(match: re.Match[str]) -> str:
        name = match[2]
        return f"{match[1]} [`{name}`](#T.{name})" if name in here else match[0]

    return re.sub(r"\b([Ss]ee|[Aa]s) `(\w+)`", link, DIRECTIVE.sub(entries, page))


def is_word(module: str) -> bool:
    return module.startswith(("tilec.builtins", "tilec.language"))


def full_name(module: str, name: str) -> str:
    return f"T.{name}" if is_word(module) else f"{module}.{name}"


def entry(module: str, name: str) -> str:
    """One entry: heading, signature, docstring, where it is used. Raises ValueError for a name
    without a docstring."""
    value = getattr(T if is_word(module) else importlib.import_module(module), name)
    title = full_name(module, name)
    lines = [f"### `{title}` {{ #{title} }}", ""]
    first = _first_name(value, name) if is_word(module) else name
    if first != name:
        lines += [f"The same as [`T.{first}`](#T.{first}).", ""]
        return "\n".join(lines)
    if call := signature(value, title):
        lines += ["```python", call, "```", ""]
    lines += [docstring(value, title), ""]
    if isinstance(value, type):
        lines += [*_members(value, title, is_word(module))]
    example = examples().get(name) if is_word(module) else None
    if example:
        lines += [f'<details markdown="1"><summary>Example, of {example.path}</summary>', ""]
        lines += ["```python", example.text, "```", "", "</details>", ""]
    return "\n".join(lines)


def dtypes(names: list[str]) -> str:
    """A table of dtypes, which have no docstrings of their own."""
    lines = ["| dtype | bits | |", "|---|---|---|"]
    for name in names:
        value = getattr(T, name)
        same = "" if value.name == name else f"the same as `T.{value.name}`"
        lines.append(f'| <span id="T.{name}"></span>`T.{name}` | {value.bits} | {same} |')
    return "\n".join([*lines, ""])


def _first_name(value: Any, name: str) -> str:
    """The name that a function was given where it is defined; that of an alias is another."""
    own = getattr(value, "__name__", None)
    known = inspect.isfunction(value) and vars(T).get(str(own)) is value
    return str(own) if known else name


def signature(value: Any, title: str) -> str:
    """The call as a program writes it; "" for what is not called."""
    arity = getattr(value, "arity", 0)
    if arity:  # a function of numbers
        return f"{title}({'x' if arity == 1 else 'x, y'})"
    if isinstance(value, type):
        if issubclass(value, enum.Enum) or issubclass(value, BaseException):
            return ""
        own = "__init__" in vars(value)
        if not own or title in ("tilec.Kernel", "tilec.CompiledKernel"):
            return ""
    if isinstance(value, Macro):
        value = value.function
    elif not isinstance(value, type) and not inspect.isroutine(value):
        return ""
    parameters = []
    for p in inspect.signature(value).parameters.values():
        kept = p.replace(annotation=inspect.Parameter.empty)
        if isinstance(p.default, enum.Enum):
            kept = p.replace(default=_Plain(p.default))
        text = str(kept.replace(annotation=inspect.Parameter.empty))
        if p.kind is not p.POSITIONAL_ONLY and p.name != "self":
            parameters.append(text)
    call = f"{title}({', '.join(parameters)})"
    if len(call) <= _WIDTH:
        return call
    return f"{title}(\n" + "".join(f"    {p},\n" for p in parameters) + ")"


class _Plain:
    """A default that is shown as it is written."""

    def __init__(self, value: enum.Enum) -> None:
        self.text = f"T.{type(value).__name__}.{value.name}"

    def __repr__(self) -> str:
        return self.text


def docstring(value: Any, title: str) -> str:
    """The docstring as Markdown. Raises ValueError where there is none."""
    text = getattr(value, "__doc__", None)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{title} has no docstring")
    return markdown(inspect.cleandoc(text))


def markdown(text: str) -> str:
    """A docstring's text with what Markdown would take for markup escaped; indented blocks are
    code, tables of arguments (a name, spaces, words) lists."""
    lines: list[str] = []
    column = 0  # where the words of a table of arguments begin
    for line in text.splitlines():
        row = _ROW.match(line)
        if row:
            if not column:
                lines.append("")
            column = row.start(2)
            names = ", ".join(f"`{n.strip()}`" for n in row[1].split(","))
            lines.append(f"- {names}: {row[2]}")
            continue
        if column and line.startswith(" " * column):
            lines.append(f"  {line.strip()}")
            continue
        if column and line:
            lines.append("")
        column = 0
        if line.startswith("    ") and lines and lines[-1] and not lines[-1].startswith("    "):
            lines.append("")
        lines.append(line)
    parts = re.split(r"(`[^`]*`)", "\n".join(lines))
    for i in range(0, len(parts), 2):
        parts[i] = parts[i].replace("**", r"\*\*").replace("<", "&lt;").replace("__", r"\_\_")
    return "".join(parts)


def _members(cls: type, title: str, word: bool) -> Iterator[str]:
    if issubclass(cls, enum.Enum):
        yield ", ".join(f"`{title}.{m.name}`" for m in cls)
        yield ""
        return
    if word:
        return
    kept, plain = MEMBERS.get(title, "").split(), []
    for name, value in inspect.getmembers(cls):
        static = inspect.getattr_static(cls, name)
        ours = any(name in vars(c) and c.__module__.startswith("tilec") for c in cls.__mro__)
        if name.startswith("_") or not ours or (kept and name not in kept):
            continue
        if isinstance(static, property) and static.__doc__:
            yield f"#### `{name}` {{ #{title}.{name} }}"
            yield ""
            yield markdown(inspect.cleandoc(static.__doc__))
            yield ""
        elif isinstance(static, property):
            plain.append(f"`{name}`")
        elif (inspect.isroutine(value) or isinstance(value, Macro)) and value.__doc__:
            yield f"#### `{name}` {{ #{title}.{name} }}"
            yield ""
            yield "```python"
            yield signature(value, name)
            yield "```"
            yield ""
            yield markdown(inspect.cleandoc(value.__doc__))
            yield ""
    if plain:
        yield f"Also {', '.join(plain)}."
        yield ""


@dataclass(frozen=True)
class Example:
    """A kernel of `path` (from the root) that uses a word."""

    path: str
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n") + 1


@functools.cache
def examples() -> dict[str, Example]:
    """For each word the shortest kernel that uses it: of examples/, else of the tests, which are
    run, too. Those of more than MOST_LINES are none."""
    found: dict[str, Example] = {}
    for folder in ("examples", "tests"):
        here: dict[str, Example] = {}
        for path in sorted((ROOT / folder).rglob("*.py")):
            for names, example in _kernels(path):
                for name in names:
                    if name not in here or example.lines < here[name].lines:
                        here[name] = example
        for name, example in here.items():
            found.setdefault(name, example)
    return found


def _kernels(path: Path) -> Iterator[tuple[set[str], Example]]:
    """The kernels of a file with the words that they use."""
    text = path.read_text()
    if "tilec.kernel" not in text:
        return
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        heads = [ast.unparse(d) for d in node.decorator_list]
        wrong_on_purpose = any(a.arg == "cut" for a in node.args.args)
        if wrong_on_purpose or not any(h.startswith("tilec.kernel") for h in heads):
            continue
        first, last = node.decorator_list[0].lineno - 1, node.end_lineno or 0
        if last - first <= MOST_LINES:
            body = textwrap.dedent("\n".join(lines[first:last]))
            yield _words_in(node), Example(str(path.relative_to(ROOT)), body)


def _words_in(node: ast.AST) -> set[str]:
    return {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "T"
    }


def pages() -> dict[str, str]:
    """The pages of the reference, by name, with their entries. Raises ValueError for a name
    without a docstring."""
    return {p.name: with_entries(p.read_text()) for p in sorted(PAGES.glob("*.md"))}


def missing() -> tuple[list[str], list[str]]:
    """What no page has: words of `tilec.language`, names of `tilec`."""
    found = {e for p in PAGES.glob("*.md") for e in listed(p.read_text())}
    have = {name for module, name in found if is_word(module)}
    api = {name for module, name in found if module == "tilec"}
    return sorted(words() - have), sorted(set(tilec.__all__) - api)


if __name__ == "__main__":
    for made in pages().values():
        print(made)
