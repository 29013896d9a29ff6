"""The stages of a kernel as lines of text, each with the line of the kernel's source it is for.

The passes print it behind each op; LLVM's text has it as debug locations, assembly as `.loc`. A
line without a place of its own has that of none (0), not of its neighbour: what LLVM has moved or
merged belongs to no single line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilec import passes
from tilec.ir.core import Func
from tilec.ir.printer import print_func

_OF_OP = re.compile(r"  // line (\d+)$")
_DEBUG = re.compile(r", !dbg !(\d+)$")
_LOCATION = re.compile(r"^!(\d+) = !DILocation\(line: (\d+),")
_LOC = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)")
_COMMENT = re.compile(r"^\s*(;|//|#)")

ABOUT = {
    "tile": "the program as it was traced: tiles, copies, products",
    "plan": "the plan that was kept, and what it was chosen from",
    "llvm": "what LLVM is given",
    "llvm-opt": "what LLVM's optimiser leaves",
    "ptx": "PTX, which ptxas assembles",
    "gcn": "AMD's assembly",
    "asm": "this machine's assembly",
    "sass": "the machine code, disassembled",
}


@dataclass(frozen=True)
class Stage:
    """`lines` of text and for each its line of the source, 0 where it has none."""

    name: str
    about: str
    lines: tuple[str, ...]
    places: tuple[int, ...]


def of_func(name: str, func: Func) -> Stage:
    """The stage of a function of the IR."""
    every = print_func(func, locs=True).splitlines()
    return _stage(name, (_apart(line, _OF_OP, int) for line in every))


def _apart(line: str, place: re.Pattern[str], source: Callable[[str], int]) -> tuple[str, int]:
    """A line without its `place`, and the line of the source that this means; 0 without one."""
    found = place.search(line)
    return (line[: found.start()], source(found[1])) if found else (line, 0)


def _stage(name: str, rows: Iterable[tuple[str, int]]) -> Stage:
    pairs = [*rows]
    return Stage(name, about(name), tuple(x for x, _ in pairs), tuple(n for _, n in pairs))


def of_text(name: str, text: str) -> Stage:
    """The stage of a text that LLVM, or tilec's code generator, has written."""
    every = text.splitlines()
    if name.startswith("llvm"):
        return _stage(name, _of_llvm(every))
    if any(_LOC.match(line) for line in every):
        return _stage(name, _of_assembly(every))
    return _stage(name, ((line, 0) for line in every))


def _of_llvm(every: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Debug locations go, the metadata behind the code too."""
    known = {m[1]: int(m[2]) for line in every if (m := _LOCATION.match(line))}
    for line in every:
        if not line.startswith(("!", "attributes #")):
            yield _apart(line, _DEBUG, lambda number: known.get(number, 0))


def _of_assembly(every: Sequence[str]) -> Iterator[tuple[str, int]]:
    """A `.loc` holds for the instructions behind it; sections of debug information are left out."""
    now = 0
    for line in every:
        if line.strip().startswith((".section", ".file")):
            now = 0
        if found := _LOC.match(line):
            now = int(found[1])
            continue
        if re.match(r"^\$?\.?L(__)?tmp\d+:", line.strip()):
            continue
        instruction = line[:1].isspace() and not line.strip().startswith(".")
        yield line, now if instruction and not _COMMENT.match(line) else 0


def about(name: str) -> str:
    """What a stage is, in a few words: of a pass, the beginning of what its file says."""
    if name in ABOUT:
        return ABOUT[name]
    number = re.search(r"-(\d+)$", name)
    base = name[: number.start()] if number else name
    return _OF_PASS.get(base, "") + (" (again)" if number else "")


def _of_pass(doc: str | None) -> str:
    """The first sentence of a pass's documentation, without its name."""
    first = " ".join((doc or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[a-z)])\.(?= |$)", first)[0]
    return re.sub(r"^[\w ,]+: ", "", sentence).rstrip(".")


_EVERY = (*passes.NORMALISE, *passes.THREADS, *passes.HOST, *passes.DECIDE, *passes.EXPAND)
_OF_PASS = {one.__name__: _of_pass(sys.modules[one.__module__].__doc__) for one, _ in _EVERY}


def changed(found: Iterable[Stage]) -> list[Stage]:
    """The stages that say something else than the one before."""
    kept: list[Stage] = []
    for stage in found:
        if not kept or stage.lines != kept[-1].lines:
            kept.append(stage)
    return kept
