"""Writes random programs: what the words of `words` write with.

A program has a grid of blocks, each with a part of (bm, bn) elements of every output. Inputs are
only read; a block writes nothing but its own part, so that blocks do not depend on one another.
Tiles are filled before anything else is done. Everything else a word may do as it likes: what has
no meaning is dropped (`meaning` raises Invalid), but costs time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

import tilec.language as T
from tilec.fuzz.arrays import MOST_FAR, Array
from tilec.ir.types import ALIASES
from tilec.ir.types import DTYPES as ALL_DTYPES

X = TypeVar("X")
Word = Callable[["Writer"], None]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOAT8 = ("float8_e4m3", "float8_e5m2")
DTYPES = (*FLOATS, "float32", "float16", *INTS, "int32")
VIEWS = ("plain",) * 8 + ("transposed", "padded", "offset", "steps", "reversed", "flipped")
MOST_HELD = 18  # of a fragment of odd extents, of which every thread holds all: code grows with it
THREADS = (64, 128, 128, 128, 256)


@dataclass(frozen=True)
class Tile:
    """An on-chip buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str

    @property
    def float8(self) -> bool:
        """Whether it is for storage and products only."""
        return "float8" in self.dtype

    @property
    def counts(self) -> bool:
        """Whether its elements can be added."""
        return not self.float8 and self.dtype != "bool"


@dataclass(frozen=True)
class Input:
    """A tensor that is only read. `fixed`: its extents are spelled out, none is a run-time size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    fixed: bool = False


@dataclass(frozen=True)
class Output:
    """A tensor of which this block writes the part that starts at `at`, `part` elements large."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    at: tuple[str, ...]
    part: tuple[int, ...]


@dataclass
class Writer:
    """The state of a program that is being written."""

    rng: np.random.Generator
    statements: tuple[Word, ...] = ()  # what may stand in a branch or a loop
    lines: list[str] = field(default_factory=list)
    depth: int = 2
    head: list[str] = field(default_factory=list)
    macros: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    arguments: dict[str, Array | int | float] = field(default_factory=dict)
    keywords: dict[str, int] = field(default_factory=dict)
    launch: tuple[int, ...] = ()  # the grid of `kernel[grid](…)`
    tiles: list[Tile] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)
    scalars: list[tuple[str, str]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    made: int = 0
    bm: int = 16
    bn: int = 16
    rows: int = 16
    columns: int = 16
    threads: int = 128
    products: int = 0

    # --- chance ---

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def between(self, low: int, high: int) -> int:
        """An int of [low, high]."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one_of(self, items: Sequence[X]) -> X:
        return items[self.below(len(items))]

    def size(self, most: int) -> int:
        """An extent: powers of two and their neighbours, and others."""
        kind = self.below(5)
        power = 2 ** self.between(most.bit_length() // 2, most.bit_length() - 1)
        near = power + self.between(-1, 1)
        found = (power, power, near, self.between(1, most), self.between(1, 9))
        return min(most, max(1, found[kind]))

    def loop(self, count: int) -> str:
        """A word for a serial loop; a long one is not written out."""
        return self.one_of(("range", "T.serial", "T.unroll")[: 3 if count <= 6 else 2])

    # --- text ---

    def name(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, line: str) -> Any:
        """A statement with a body, which is never empty."""
        self.emit(line)
        before = len(self.lines)
        self.depth += 1
        kept = len(self.counters), len(self.scalars)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        del self.counters[kept[0] :], self.scalars[kept[1] :]
        self.depth -= 1

    # --- what a program has ---

    def tile(self, shape: tuple[int, ...], dtype: str, space: str = "") -> Tile:
        """A new tile; its allocation stands before everything."""
        odd = math.prod(shape) > MOST_HELD and any(e & (e - 1) for e in shape)
        space = space or ("shared" if odd else self.one_of(("shared", "fragment")))
        made = Tile(self.name("S" if space == "shared" else "f"), shape, dtype, space)
        extents = listed(list(map(str, shape)))
        self.head.append(f"{made.name} = T.alloc_{space}(({extents}), {self.spelled(dtype)})")
        return made

    def spelled(self, dtype: str) -> str:
        """A dtype as one writes it."""
        names = [n for n, d in ALIASES.items() if d == dtype and hasattr(T, n)]
        kind = self.below(10)
        if kind == 0 and names:
            return f"T.{self.one_of(names)}"
        return f"T.{dtype}" if kind == 1 else f'"{dtype}"'

    def tensor(
        self,
        prefix: str,
        shape: tuple[int, ...],
        dtype: str,
        content: str,
        view: str = "",
        sizes: Sequence[str] = (),
        high: int = 4,
    ) -> str:
        """A tensor parameter. `sizes`: names of the run-time sizes among its extents, "" for a
        compile-time one."""
        name = self.name(prefix)
        array = Array(shape, dtype, view or self.one_of(VIEWS), content, self.below(1000), high)
        self.arguments[name] = array
        extents = listed([s or str(e) for s, e in zip(sizes or [""] * len(shape), shape)])
        strides = array.strides()
        if min(strides) > 0 and self.chance(0.08):
            shown = listed(list(map(str, strides)))
            made = f'T.StridedTensor(({extents}), ({shown}), "{dtype}")'
        else:
            word = self.one_of(("Tensor",) * 6 + ("Buffer",))
            made = f"T.{word}(({extents}), {self.spelled(dtype)})"
        self.parameters[name] = made
        return name

    def input(self, shape: tuple[int, ...], dtype: str, sizes: Sequence[str] = ()) -> Input:
        content = self.one_of(("ints", "real", "real", "wild"))
        views: tuple[str, ...] = (*VIEWS, "broadcast")
        if len(shape) > 1 and math.prod(shape[:-1]) <= MOST_FAR and ALL_DTYPES[dtype].bits <= 16:
            views = ("plain", "plain", "far")
        name = self.tensor("A", shape, dtype, content, self.one_of(views), sizes)
        made = Input(name, shape, dtype, not any(sizes))
        self.inputs.append(made)
        return made

    def output(
        self,
        shape: tuple[int, ...],
        dtype: str,
        at: tuple[str, ...],
        part: tuple[int, ...],
        sizes: Sequence[str] = (),
    ) -> Output:
        name = self.tensor("C", shape, dtype, "blank", "", sizes)
        made = Output(name, shape, dtype, at, part)
        self.outputs.append(made)
        return made

    def scalar(self, dtype: str, value: float) -> str:
        name = self.name("n")
        self.parameters[name] = f"T.{dtype}"
        self.arguments[name] = value
        self.scalars.append((name, dtype))
        return name

    def constant(self, value: int) -> str:
        """A compile-time parameter, with its default or given by the call."""
        name = self.name("B")
        if self.chance(0.5):
            self.constants.append(f"{name}: T.constexpr = {value}")
        else:
            self.constants.append(f"{name}: T.constexpr = 1")
            self.keywords[name] = value
        self.scalars.append((name, "int32"))
        return name


def listed(items: Sequence[str]) -> str:
    """What stands between the brackets of a tuple."""
    return ", ".join(items) + ("," if len(items) == 1 else "")


def indices(w: Writer, rank: int) -> list[str]:
    """Names for the indices of a T.Parallel."""
    return [f"{letter}{w.depth if w.depth > 2 else ''}" for letter in "ijlm"[:rank]]


def head(names: list[str], extents: tuple[int, ...], options: str = "") -> str:
    """The line of a T.Parallel."""
    return f"for {', '.join(names)} in T.Parallel({', '.join(map(str, extents))}{options}):"
