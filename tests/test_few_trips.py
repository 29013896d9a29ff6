"""Every example and every program with a loop over a run-time size, called with sizes that give
each such loop 0, 1 and 2 iterations: on the CPU or, with all checks, in the simulator. What must
come out is what the source means in NumPy (`tilec.fuzz.meaning`)."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from user_programs import CASES

import tilec
from tilec.builtins.annotations import Size, Tensor
from tilec.builtins.choices import Auto
from tilec.frontend.source import read_source
from tilec.fuzz.outcome import check
from tilec.fuzz.program import Array, Launch
from tilec.ir.types import find_dtype
from tilec.kernel import Kernel

Sizes = Mapping[str, int]

pytestmark = pytest.mark.usefixtures("unassembled")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
FEW = 24  # a size that is not varied
SINGLE = "GB"  # sizes that are 1 then: of groups, and batches
TRIED = (0, 1, 2, 9, 18, *range(8, 521, 8))  # of one that is
OPTIONS = {"from_launch": {"BM": 32, "BN": 32}}
UNWRITTEN = {"product_mixed_operands": 0}  # reads behind a loop what the loop fills
TOGETHER = ("sparse_gemm",)  # whose arrays belong together: random ones mean nothing
EXAMPLES = sorted(
    p.stem
    for p in (Path(__file__).parent.parent / "examples").glob("*.py")
    if p.stem not in TOGETHER
)
LOOPS = ("serial", "range", "Pipelined", "Persistent")


def kernels() -> Iterator[tuple[str, Kernel, Mapping[str, Any]]]:
    """Those of the examples and of the programs for tests, with their options; of the kernels that
    one function makes the first."""
    seen = set()
    for module in (*EXAMPLES, "ring_programs", "stranger_programs"):
        members = vars(importlib.import_module(module))
        for value in (*members.values(), *members.get("KERNELS", {}).values()):
            if isinstance(value, Kernel) and value.function.__code__ not in seen:
                seen.add(value.function.__code__)
                yield f"{module}-{value.name}", value, OPTIONS.get(value.name, {})
    for name, case in CASES.items():
        if case.function.__code__ not in seen:
            seen.add(case.function.__code__)
            yield name, tilec.kernel(case.function), case.options


@functools.cache
def annotations(function: Any) -> dict[str, Any]:
    return inspect.get_annotations(function, eval_str=True)


def sizes(kernel: Kernel) -> set[str]:
    """The run-time sizes that extents name."""
    found = set()
    for a in annotations(kernel.function).values():
        for extent in a.shape if isinstance(a, Tensor) else ():
            found |= names(extent)
    return found


def names(extent: int | Size) -> set[str]:
    if isinstance(extent, int):
        return set()
    return {n for a in extent.args for n in names(a)} if extent.op else {extent.text}


class Words:
    """What bounds call."""

    ceildiv = cdiv = staticmethod(lambda a, b: -(-a // b))
    if_then_else = staticmethod(lambda c, a, b: a if c else b)
    min, max = min, max


def loops(kernel: Kernel, options: Mapping[str, Any]) -> Iterator[Callable[[Sizes], int]]:
    """For each loop how often it runs, in block 0, where there are sizes like these. Raises
    NameError or TypeError where sizes do not say."""
    source = read_source(kernel.function)
    scope: dict[str, Any] = {
        n: p.default.values[0] if isinstance(p.default, Auto) else p.default
        for n, p in inspect.signature(kernel.function).parameters.items()
        if p.default is not p.empty
    }
    free = {n: source.lookup(n)[1] for n in source.visible_names()}
    plain = {n: v for n, v in free.items() if not isinstance(v, Size)}
    scope = {**plain, **scope, **options, "T": Words, "bx": 0, "by": 0, "block": 0}

    def counted(call: ast.Call) -> Callable[[Sizes], int]:
        bounds = ", ".join(ast.unparse(a) for a in call.args[:2])

        def trips(given: Sizes) -> int:
            values = eval(f"({bounds},)", {**scope, **given})
            if isinstance(values[0], list):  # T.Persistent
                return -(-math.prod(values[0]) // values[1])
            return max(0, values[-1] - (values[0] if len(values) > 1 else 0))

        return trips

    for node in ast.walk(source.node):
        match node:
            case ast.For(iter=ast.Call() as call):
                if ast.unparse(call.func).rpartition(".")[2] in LOOPS:
                    yield counted(call)
            case ast.While(test=ast.Compare(ast.Name(counter), [ast.Lt()], [ast.Name(size)])):
                for step in ast.walk(node):
                    match step:
                        case ast.AugAssign(ast.Name(n), ast.Add(), ast.Constant(by)):
                            if n == counter:
                                yield lambda given, size=size, by=by: -(-given[size] // by)


def calls(kernel: Kernel, options: Mapping[str, Any]) -> list[tuple[int, dict[str, int]]]:
    """For a call each how often a loop that hangs on a size runs (0, 1 and 2 times) and sizes that
    make it: the largest that do, which are whole tiles."""
    few = {n: 1 if n in SINGLE else FEW for n in sorted(sizes(kernel))}
    made: list[tuple[int, dict[str, int]]] = []
    for trips in loops(kernel, options):
        for name in few:
            least = UNWRITTEN.get(kernel.name, -1) + 1
            try:
                found = {trips({**few, name: n}): n for n in TRIED}
            except (KeyError, NameError, TypeError):
                break
            if len(found) > 2:  # else it does not hang on this size
                made += [(n, {**few, name: found[n]}) for n in range(least, 3) if n in found]
                break
    return list({(*one.items(),): (n, one) for n, one in reversed(made)}.values())[::-1]


@dataclass(frozen=True)
class Numbers(Array):
    """An array of these numbers."""

    numbers: tuple[int, ...] = ()

    def _values(self, fnuz: bool) -> np.ndarray:
        return np.array(self.numbers, np.int32)


def arguments(kernel: Kernel, given: Sizes) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for number, (name, a) in enumerate(annotations(kernel.function).items()):
        if isinstance(a, Tensor):
            shape = tuple(extent(e, given) for e in a.shape)
            content = "index" if a.dtype.kind in ("int", "uint") else "ints"
            made[name] = Array(shape, a.dtype.name, content=content, seed=number)
            if name == "offsets":  # of groups of rows
                made[name] = Numbers(shape, "int32", numbers=(0, given["M"]))
        elif find_dtype(a) is not None:
            made[name] = 2 if find_dtype(a).is_int else 0.5
    return made


def extent(e: int | Size, given: Sizes) -> int:
    if isinstance(e, int):
        return e
    return int(eval(str(e), {**given})) if e.op else given[e.text]


def cases() -> Iterator[Any]:
    for number, (name, kernel, options) in enumerate(kernels()):
        for trips, given in calls(kernel, options):
            shown = "-".join(f"{n}{v}" for n, v in given.items() if v not in (1, FEW))
            target = TARGETS[number % 4]
            yield pytest.param(kernel, options, given, target, trips, id=f"{name}-{shown}")


@pytest.mark.covering(1, axes=("kernel", "trips"))
@pytest.mark.parametrize(("kernel", "options", "given", "target", "trips"), list(cases()))
def test_loops_of_few_trips(
    kernel: Kernel, options: Mapping[str, Any], given: Sizes, target: str, trips: int
) -> None:
    """Usually each program once: what runs 0 times, and what runs 1 or 2 times, take turns."""
    grid = (1, 1) if kernel.name == "from_launch" else ()
    check(kernel, arguments(kernel, given), (target,), Launch(grid, options))
