"""A program's parts put together; the tensors that the call makes, and sizes that a body reads from
its arguments."""

from __future__ import annotations

import re

from tilec.fuzz.arrays import Array
from tilec.fuzz.launches import Frame
from tilec.fuzz.program import SIZES, Launch, Program
from tilec.fuzz.writer import Writer


def assemble(w: Writer, frame: Frame) -> Program:
    """The program that `w` has written into `frame`."""
    parameters = dict(w.parameters)
    decorator = [frame.decorated] if frame.decorated else []
    before: list[str] = []
    after: list[str] = []
    kind = w.below(10)
    if kind == 0:
        out = _made_by_the_call(w, parameters)
        if out:
            w.words.append("out")
            decorator.append(f"out=[{', '.join(map(repr, out))}]")
    elif kind in (1, 2):
        out = _made_by_the_call(w, parameters)
        made = [f"    {name} = T.empty({_emptied(parameters.pop(name))})" for name in out]
        if out:
            w.words.append("empty")
            after = [f"    return {', '.join(out)}"]
        if _bound(parameters):
            w.words.append("const")
            before += _read_in_the_body(parameters)
        before += made
    shown = [f"{n}: {t}" if t else n for n, t in parameters.items()]
    given = ", ".join((*shown, *w.constants))
    text = [
        f"@tilec.kernel({', '.join(decorator)})" if decorator else "@tilec.kernel",
        f"def kernel({given}):",
        *before,
        *frame.opening,
        *_opened(w, frame),
        *w.lines,
        *after,
    ]
    source = "".join(w.macros.values()) + "\n".join(text) + "\n"
    return Program(source, w.arguments, tuple(w.words), Launch(w.launch, w.keywords))


def _opened(w: Writer, frame: Frame) -> list[str]:
    """The lines that make tiles and say how, and those of a loop over the grid around the body."""
    tiles = [text for text in w.head if "T.alloc_" in text or "annotate_layout" in text]
    before = [text for text in w.head if not (frame.within and text in tiles)]
    within = [text for text in tiles if frame.within]
    lines = ["    " * frame.level + text for text in before]
    return [*lines, *frame.walk, *("    " * (frame.level + 1) + text for text in within)]


def _sizes(parameters: dict[str, str]) -> list[str]:
    """The run-time sizes that annotations name."""
    text = " ".join(parameters.values())
    return [s for s in SIZES if re.search(rf"\b{s}\b", text)]


def _bound(parameters: dict[str, str]) -> list[str]:
    """The sizes that an extent or a stride is by itself, so that an array gives them."""
    text = " ".join(parameters.values())
    return [s for s in SIZES if re.search(rf"(?<=[( ]){s}(?=[,)])", text)]


def _made_by_the_call(w: Writer, parameters: dict[str, str]) -> list[str]:
    """Outputs that the call makes, whose sizes other tensors give. They are no arguments then."""
    found: list[str] = []
    for output in w.outputs:
        array = w.arguments[output.name]
        assert isinstance(array, Array)
        rest = {n: t for n, t in parameters.items() if n != output.name and n not in found}
        tensors = any(isinstance(w.arguments[n], Array) for n in rest)
        bound = set(_sizes({**parameters})) <= set(_bound(rest))
        if tensors and bound and "Strided" not in parameters[output.name] and w.chance(0.6):
            found.append(output.name)
            del w.arguments[output.name]
    return found


def _emptied(annotation: str) -> str:
    """The arguments of T.Tensor, for T.empty."""
    return annotation.partition("(")[2][:-1]


def _read_in_the_body(parameters: dict[str, str]) -> list[str]:
    """Sizes as compile-time ints, and the tensors that give them, annotated in the body."""
    names = _bound(parameters)
    lines = [f'    {", ".join(names)} = T.const("{", ".join(names)}")']
    for name, text in parameters.items():
        if _sizes({"": text}):
            lines.append(f"    {name}: {text}")
            parameters[name] = ""
    return lines
