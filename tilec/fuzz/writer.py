"""Writes random programs: the state of one, and the table of the functions that write statements.

A program has a grid of blocks, each with a part of (bm, bn) elements of every output. Inputs are
only read; a block writes nothing but its own part, so that blocks do not depend on one another.
Tiles are filled before anything else is done. Everything else a word may do as it likes: what has
no meaning is dropped (`meaning` raises Invalid), but costs time.

A new word of the language gets a function under `@statement` in the file of its subject (`tiles`,
`blocks`, `products`, `schedules`) or a place in `expressions`, and a method in `meaning.Words` or
`maths.Maths`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

import tilec.language as T
from tilec.fuzz.program import MOST_FAR, Array
from tilec.ir.types import ALIASES
from tilec.ir.types import DTYPES as ALL_DTYPES

X = TypeVar("X")
Y = TypeVar("Y")
Word = Callable[["Writer"], None]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES = (*FLOATS, "float32", "float16", *INTS, "int32")
VIEWS = ("plain",) * 8 + ("transposed", "padded", "offset", "steps", "reversed", "flipped")
MOST_HELD = 18  # of a fragment of odd extents, of which every thread holds all: code grows with it
THREADS = (64, 128, 128, 128, 256)


class Missing(Exception):
    """A statement has nothing to work on."""


@dataclass(frozen=True)
class Buffer:
    """A tile, in `space`; a tensor that is only read (`fixed`: its extents are spelled out, none is
    a run-time size); or one of which this block writes the part that starts at `at`, `part`
    elements large."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str = ""
    fixed: bool = False
    at: tuple[str, ...] = ()
    part: tuple[int, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether its elements can be added: float8 is for storage and products only."""
        return "float8" not in self.dtype and self.dtype != "bool"

    def element(self, names: Sequence[str]) -> str:
        return f"{self.name}[{', '.join(names)}]"

    def own(self, names: Sequence[str]) -> str:
        """An element of this block's part of an output."""
        return self.element([f"{a} + {n}" for a, n in zip(self.at, names)])


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: the indices of the T.Parallel around it with their extents, and
    the tile that it is stored to, of which only the element `own` may be read."""

    index: tuple[tuple[str, int], ...] = ()
    target: str = ""
    own: str = ""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.index]


def planes(buffers: Sequence[Buffer], rank: int = 2) -> list[Buffer]:
    """Those with so many dimensions."""
    return [b for b in buffers if len(b.shape) == rank]


@dataclass
class Writer:
    """The state of a program that is being written."""

    rng: np.random.Generator
    lines: list[str] = field(default_factory=list)
    depth: int = 2
    head: list[str] = field(default_factory=list)
    macros: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    arguments: dict[str, Array | int | float] = field(default_factory=dict)
    keywords: dict[str, int] = field(default_factory=dict)
    launch: tuple[int, ...] = ()  # the grid of `kernel[grid](…)`
    tiles: list[Buffer] = field(default_factory=list)
    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
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
        if not items:
            raise Missing
        return items[self.below(len(items))]

    def pair_of(self, first: Sequence[X], second: Sequence[Y]) -> tuple[X, Y]:
        """One of each, where there are both."""
        if not first or not second:
            raise Missing
        return self.one_of(first), self.one_of(second)

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
    def block(self, line: str) -> Iterator[None]:
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

    @contextmanager
    def elements(
        self, shape: Sequence[int], target: Buffer | None = None, reads: bool = True,
        options: str = "", names: Sequence[str] = (),
    ) -> Iterator[Scope]:  # fmt: skip
        """A T.Parallel. `target`: the tile that is stored to, whose element may be read first."""
        names = names or self.indices(len(shape))
        own = target.element(names) if target is not None and reads else ""
        scope = Scope(tuple(zip(names, shape)), target.name if target else "", own)
        with self.block(head(names, shape, options)):
            yield scope

    @contextmanager
    def counted(self, line: str, name: str) -> Iterator[None]:
        """A loop around one or two statements, and what is written behind them."""
        with self.block(line):
            self.counters.append(name)
            self.inner()
            yield

    def indices(self, rank: int) -> list[str]:
        """Names for the indices of a T.Parallel."""
        return [f"{letter}{self.depth if self.depth > 2 else ''}" for letter in "ijlm"[:rank]]

    def statement(self, words: Sequence[Word]) -> None:
        """One of them."""
        word = self.one_of(words)
        self.words.append(word.__name__)
        word(self)

    def inner(self) -> None:
        """One or two statements; tiles made in them are forgotten after them."""
        kept = len(self.tiles)
        for _ in range(self.between(1, 2)):
            self.statement(STATEMENTS)
        del self.tiles[kept:]

    # --- what a program has ---

    @property
    def scheduled(self) -> bool:
        """Whether its schedule or the order of its blocks is fixed already."""
        return any("use_swizzle" in line or "annotate_schedule" in line for line in self.head)

    @property
    def pipelines(self) -> bool:
        return any("T.Pipelined" in line for line in self.lines)

    def tile(self, shape: tuple[int, ...], dtype: str, space: str = "") -> Buffer:
        """A new tile; its allocation stands before everything."""
        odd = math.prod(shape) > MOST_HELD and any(e & (e - 1) for e in shape)
        space = space or ("shared" if odd else self.one_of(("shared", "fragment")))
        made = Buffer(self.name("S" if space == "shared" else "f"), shape, dtype, space)
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

    def input(self, shape: tuple[int, ...], dtype: str, sizes: Sequence[str] = ()) -> Buffer:
        content = self.one_of(("ints", "real", "real", "wild"))
        views: tuple[str, ...] = (*VIEWS, "broadcast")
        if len(shape) > 1 and math.prod(shape[:-1]) <= MOST_FAR and ALL_DTYPES[dtype].bits <= 16:
            views = ("plain", "plain", "far")
        name = self.tensor("A", shape, dtype, content, self.one_of(views), sizes)
        self.inputs.append(Buffer(name, shape, dtype, fixed=not any(sizes)))
        return self.inputs[-1]

    def output(
        self, shape: tuple[int, ...], dtype: str, at: tuple[str, ...], part: tuple[int, ...],
        sizes: Sequence[str] = (),
    ) -> Buffer:  # fmt: skip
        name = self.tensor("C", shape, dtype, "blank", "", sizes)
        self.outputs.append(Buffer(name, shape, dtype, at=at, part=part))
        return self.outputs[-1]

    def scalar(self, dtype: str, value: float) -> str:
        name = self.name("n")
        self.parameters[name] = f"T.{dtype}"
        self.arguments[name] = value
        self.scalars.append((name, dtype))
        return name

    def told(self, value: int) -> str:
        """An int that only the call knows."""
        name = self.name("n")
        self.parameters[name] = "T.int32"
        self.arguments[name] = value
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


def head(names: Sequence[str], extents: Sequence[int], options: str = "") -> str:
    """The line of a T.Parallel."""
    return f"for {', '.join(names)} in T.Parallel({', '.join(map(str, extents))}{options}):"


STATEMENTS: list[Word] = []  # what may stand anywhere, as often as it is drawn
OUTER: list[Word] = []  # what may stand at a block's top level


def statement(weight: int = 1, outer: int = 0, deepest: int = 9) -> Callable[[Word], Word]:
    """Enter a function that writes a statement into the tables, so many times; not in loops and
    branches that are deeper."""

    def enter(make: Word) -> Word:
        @functools.wraps(make)
        def word(w: Writer) -> None:
            if w.depth <= deepest:
                with suppress(Missing):
                    make(w)

        STATEMENTS.extend([word] * weight)
        OUTER.extend([word] * outer)
        return word

    return enter
