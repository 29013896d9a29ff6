"""A fuzzed program: the source of a kernel and the arguments it is called with. Tensors are small
descriptions of what is in them and how they lie in memory, which a test file spells out and which a
failing program is shrunk by."""

from __future__ import annotations

import hashlib
import linecache
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

import tilec.language as T
from tilec.decorator import kernel
from tilec.fuzz.numbers import Array as NumpyArray
from tilec.ir.semantics import numpy_dtype
from tilec.ir.types import DTYPES, contiguous_strides
from tilec.jit.simulate import simulate
from tilec.kernel import Kernel
from tilec.layout import make_mma_swizzle_layout, make_swizzled_layout
from tilec.sim.report import Report

SIZES = ("M", "N", "K", "P", "Q")
NAMED_SIZES = f'{", ".join(SIZES)} = T.dynamic("{", ".join(SIZES)}")'
VIEWS = (
    "plain", "transposed", "padded", "offset", "steps", "reversed", "flipped", "broadcast", "far",
)  # fmt: skip
FAR = 2**31 + 64  # elements between two rows of a view "far"
MOST_FAR = 3  # rows of it


@dataclass(frozen=True)
class Array:
    """An array of `shape` and `dtype` (of tilec). `view`: how it lies in its memory:

    plain       row after row
    transposed  column after column
    padded      rows some elements longer than what is seen of them
    offset      not at a multiple of 16 bytes
    steps       every second element along each dimension
    reversed    the first dimension backwards
    flipped     the last dimension backwards
    broadcast   the first dimension does not move (no output)
    far         rows more than 2^31 elements apart

    `content`: small whole numbers ("ints"), normally distributed ones ("real"), any bits that are
    numbers ("wild"), whole numbers from -1 to `high` ("index"), or the same number everywhere
    ("blank", what outputs hold before).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    view: str = "plain"
    content: str = "ints"
    seed: int = 0
    high: int = 4

    def __repr__(self) -> str:
        """As Python, defaults left out."""
        plain = Array(self.shape)
        named = {n: getattr(self, n) for n in ("view", "content", "seed", "high")}
        shown = [f"{n}={v!r}" for n, v in named.items() if v != getattr(plain, n)]
        return f"Array({', '.join([repr(self.shape), repr(self.dtype), *shown])})"

    def make(self, fnuz: bool = False) -> Made:
        """The array. `fnuz`: float8 is AMD's."""
        dtype = numpy_dtype(DTYPES[self.dtype], fnuz)
        values = self._values(fnuz)
        base, view = _placed(self.view, self.shape, dtype)
        view[...] = values
        return Made(base, view)

    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(_strides(self.view, self.shape)[1])

    def _values(self, fnuz: bool) -> NumpyArray:
        rng = np.random.default_rng(self.seed)
        dtype = DTYPES[self.dtype]
        kind = numpy_dtype(dtype, fnuz)
        size = self.shape if self.view != "broadcast" else (1, *self.shape[1:])
        made: NumpyArray
        match self.content:
            case "index":
                made = rng.integers(-1, self.high + 1, size)
            case "blank":
                made = np.full(size, 1 if dtype.kind == "bool" else 77)
                made = np.minimum(made, 8) if dtype.bits == 8 and dtype.is_float else made
            case "real" if dtype.is_float:
                made = rng.standard_normal(size)
            case "wild" if dtype.is_int and dtype.kind != "bool":
                limits = np.iinfo(kind)
                made = rng.integers(limits.min, limits.max, size, kind, endpoint=True)
            case "wild" if dtype.is_float:
                made = rng.standard_normal(size) * 2.0 ** rng.integers(-6, 7, size)
            case _:
                low = 0 if dtype.kind in ("uint", "bool") else -4
                made = rng.integers(low, 2 if dtype.kind == "bool" else 5, size)
        return made.astype(kind)


@dataclass(frozen=True)
class Made:
    """`view` is the array, `base` the memory that holds it."""

    base: NumpyArray
    view: NumpyArray

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(s // self.view.itemsize for s in self.view.strides)

    @property
    def start(self) -> int:
        """The first element's place in `base`."""
        first: int = self.view.__array_interface__["data"][0]
        return (first - self.base.ctypes.data) // self.view.itemsize

    def outside(self) -> bytes:
        """The memory that does not belong to the view, to see whether it is left alone."""
        if self.base.size > 2**24 or 0 in self.view.shape:
            return b""
        mask = np.ones(self.base.shape, bool)
        seen = np.lib.stride_tricks.as_strided(mask[self.start :], self.view.shape, self.strides)
        seen[...] = False
        return self.base[mask].tobytes()


def _strides(view: str, shape: tuple[int, ...]) -> tuple[int, list[int]]:
    """Where an array of this view starts in its memory, and its strides, in elements."""
    strides, start = [*contiguous_strides(shape)], 0
    match view:
        case "transposed":
            strides = [math.prod(shape[:d]) for d in range(len(shape))]
        case "padded" if len(shape) > 1:
            row = shape[-1] + 3
            strides = [row * math.prod(shape[d + 1 : -1]) for d in range(len(shape) - 1)] + [1]
        case "offset":
            start = 1
        case "steps":
            strides = [2 * s * 2 for s in strides[:-1]] + [2]
        case "reversed":
            start = strides[0] * max(0, shape[0] - 1)
            strides[0] = -strides[0]
        case "flipped":
            start = strides[-1] * max(0, shape[-1] - 1)
            strides[-1] = -strides[-1]
        case "broadcast":
            strides[0] = 0
        case "far" if len(shape) > 1 and math.prod(shape[:-1]) <= MOST_FAR:
            strides = [FAR * math.prod(shape[d + 1 : -1]) for d in range(len(shape) - 1)] + [1]
    return start, strides


def _placed(view: str, shape: tuple[int, ...], dtype: Any) -> tuple[NumpyArray, NumpyArray]:
    """Memory (one dimension), and an array of `shape` in it."""
    start, strides = _strides(view, shape)
    span = start + sum(max(0, e - 1) * max(0, s) for e, s in zip(shape, strides)) + 1
    item = np.dtype(dtype).itemsize
    if span > 2**24:  # of which a few pages are touched
        base = np.zeros(span + 16, dtype)
    else:
        raw = np.full((span + 8) * item + 16, 0x11, np.uint8)
        skip = -raw.ctypes.data % 16
        base = raw[skip : skip + (span + 8) * item].view(dtype)
    steps = tuple(s * item for s in strides)
    bits = base[start:].view(f"u{item}")  # NumPy has no strided views of float8
    return base, np.lib.stride_tricks.as_strided(bits, shape, steps).view(dtype)


@dataclass(frozen=True)
class Launch:
    """How a kernel is called: `kernel[grid](…, **keywords)`; no grid where its source has one."""

    grid: tuple[int, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def call(self, kernel: Kernel, given: Sequence[Any]) -> list[Any]:
        """Call the kernel; the arrays that it makes, in the order in which it returns them."""
        called = kernel[self.grid] if self.grid else kernel
        made = called(*given, **self.keywords)
        return [] if made is None else list(made) if isinstance(made, tuple) else [made]

    def simulate(
        self, kernel: Kernel, given: Sequence[Any], target: str, optimised: bool = False
    ) -> Report:
        """Run the kernel in the simulator."""
        grid = self.grid or None
        return simulate(
            kernel, *given, grid=grid, target=target, optimised=optimised, **self.keywords
        )

    def assembly(self, kernel: Kernel, given: Sequence[Any], target: str) -> str:
        """The assembly of the variant that the call runs."""
        planned = kernel.plan_launch(target, self.grid or None, given, self.keywords)
        return planned.variant.asm


PLAIN = Launch()


@dataclass(frozen=True)
class Program:
    """`source`: the kernel as a `def`, decorator included, and the macros before it. `arguments`:
    what a call passes, by name, in the order of the parameters; ints and floats for scalars.
    `words`: what the generator wrote it from."""

    source: str
    arguments: Mapping[str, Array | int | float]
    words: tuple[str, ...] = field(default=(), compare=False)
    launch: Launch = PLAIN

    @property
    def digest(self) -> str:
        """A short name of the program."""
        text = f"{self.source}\n{dict(self.arguments)!r}\n{self.launch!r}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def load(self) -> Kernel:
        """The kernel. Raises SyntaxError, and CompileError for its annotations."""
        file = f"<fuzz {self.digest}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[file] = (len(self.source), None, lines, file)
        sizes = dict(zip(SIZES, T.dynamic(", ".join(SIZES))))
        scope: dict[str, Any] = {
            "T": T, "kernel": kernel, "make_swizzled_layout": make_swizzled_layout,
            "make_mma_swizzle_layout": make_mma_swizzle_layout,
            "tilec": SimpleNamespace(kernel=kernel), **sizes,
        }  # fmt: skip
        exec(compile(self.source, file, "exec", dont_inherit=True), scope)
        made = [v for v in scope.values() if isinstance(v, Kernel)]
        return made[-1]

    def forget(self) -> None:
        """Drop the source that `load` registered."""
        linecache.cache.pop(f"<fuzz {self.digest}>", None)

    def make(self, fnuz: bool = False) -> dict[str, Made | int | float]:
        """New arguments. `fnuz`: float8 is AMD's."""
        return make_arguments(self.arguments, fnuz)


def make_arguments(
    arguments: Mapping[str, Array | int | float], fnuz: bool = False
) -> dict[str, Made | int | float]:
    """New arrays for those described; numbers as they are."""
    return {n: a.make(fnuz) if isinstance(a, Array) else a for n, a in arguments.items()}
