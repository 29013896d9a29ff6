"""What the source of a kernel means, in NumPy: the words of `tilec.language`, one method a word;
those about single numbers are `maths.WORDS`.

`prepared` runs the very function that tilec compiles, block after block, with these words in place
of the language's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import tilec.language as T
from tilec.builtins.annotations import dtype_of
from tilec.fuzz.buffers import Buffer, Invalid, Place, Region
from tilec.fuzz.folds import Folds, region_of
from tilec.fuzz.maths import WORDS
from tilec.fuzz.numbers import Array, Number, Unclear, arithmetic, grain, index, inexact_tf32, unit
from tilec.fuzz.program import Launch
from tilec.ir.types import BOOL, FLOAT16, FLOAT32, INT32, TFLOAT32, DType, find_dtype

MOST_ITERATIONS = 5000  # of one loop: beyond, a program counts as running for ever


class Words(Folds):
    """Stands for `tilec.language` while a kernel's function is run by Python. `tensors`: those that
    the function was given or has made."""

    GemmWarpPolicy = T.GemmWarpPolicy

    def __init__(self, place: Place, launch: Launch) -> None:
        self._place = place
        self._launch = launch
        self._grid: tuple[int, ...] = (*launch.grid, 1, 1, 1)[:3]
        self._at: tuple[int, ...] = (0, 0, 0)
        self._threads = 0
        self.tensors: list[Buffer] = []

    def __getattr__(self, name: str) -> Any:
        found = WORDS.get(name) or find_dtype(name)
        if found is None:
            raise Invalid(f"T.{name} has no meaning here")
        return found

    # --- the grid ---

    def Kernel(self, *grid: Any, threads: Any = None, cluster_dims: Any = None) -> Iterator[Any]:
        extents = [int(g) for g in grid or self._launch.grid]
        self._grid = full = (*extents, 1, 1, 1)[:3]
        self._threads = int(threads or self._launch.keywords.get("threads", 128))
        for number, at in enumerate(np.ndindex(full[::-1])):
            self._place.block = number
            self._place.iteration = None
            self._at = at[::-1]
            yield _indices(self._at[: len(extents)])

    def program_id(self, axis: int = 0) -> Number:
        return index(self._at[axis])

    get_block_binding = program_id

    def get_block_bindings(self) -> tuple[Number, ...]:
        return tuple(index(a) for a in self._at)

    def num_programs(self, axis: int = 0) -> Number:
        return index(self._grid[axis])

    def Persistent(
        self, domain: Any, wave_size: Any = None, index_: Any = None, group_size: int = 8
    ) -> Iterator[Any]:
        extents = [int(e) for e in domain]
        wave = int(wave_size) if wave_size is not None else math.prod(self._grid)
        mine = int(index_) if index_ is not None else self._place.block
        total = math.prod(extents)
        first, rest = extents[0], math.prod(extents[1:])
        for tile in range(mine, total, wave):
            group, inside = divmod(tile, group_size * rest)
            rows = min(group_size, first - group * group_size)
            other, row = divmod(inside, rows)
            yield _indices((group * group_size + row, *np.unravel_index(other, extents[1:])))

    # --- threads ---

    def get_thread_binding(self, dim: int = 0) -> Number:
        return index(np.arange(self._threads) if dim == 0 else 0)

    def get_thread_bindings(self) -> tuple[Number, ...]:
        return tuple(self.get_thread_binding(dim) for dim in range(3))

    def thread_binding(self, start: Any, stop: Any = None, thread: str = "threadIdx.x") -> Number:
        first = 0 if stop is None else start
        return arithmetic("add", first, self.get_thread_binding("xyz".index(thread[-1])))

    @contextmanager
    def each_thread(self) -> Iterator[None]:
        """One statement, done by all threads at once: tilec puts barriers between statements, so
        that only in one of them no thread may touch what another one writes."""
        self._enter(np.arange(self._threads))
        yield
        self._place.iteration = None

    # --- placement ---

    def tensor(self, name: str, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A tensor in global memory."""
        self.tensors.append(Buffer(name, shape, dtype, self._place, tile=False))
        return self.tensors[-1]

    def empty(self, name: str, shape: Any, dtype: Any = "float32") -> Buffer:
        return self.tensor(name, _extents(shape), dtype_of(dtype))

    def alloc_shared(self, shape: Any, dtype: Any, scope: str = "") -> Buffer:
        return Buffer("a tile", _extents(shape), dtype_of(dtype), self._place, tile=True)

    alloc_fragment = alloc_shared

    def alloc_local(self, shape: Any, dtype: Any, scope: str = "") -> Buffer:
        made = self.alloc_shared((self._threads, *_extents(shape)), dtype)
        made.threads = self._threads
        return made

    def cast(self, value: Any, dtype: Any) -> Number:
        """T.cast; a literal is of Python's type before."""
        if not isinstance(value, Number):
            kinds = {bool: BOOL, float: FLOAT32}
            value = Number(value, kinds.get(type(value), INT32))
        number: Number = value
        return number.to(dtype_of(dtype), self._place.fnuz)

    def Cast(self, dtype: Any, value: Any) -> Number:
        return self.cast(value, dtype)

    def alloc_var(self, dtype: Any, init: Any = None) -> object:
        if init is None:
            return object()  # nothing can be done with it before it is assigned
        return self.cast(init, dtype)

    # --- movement ---

    def copy(self, src: Any, dst: Any, **options: Any) -> None:
        a, b = region_of(src), region_of(dst)
        if None not in a.extents:
            extents = a.filled(())
            theirs = b.filled(_trimmed(extents, len(b.starts)))
        else:
            theirs = b.filled(b.buffer.shape)
            extents = a.filled(_trimmed(theirs, len(a.starts)))
        if math.prod(extents) != math.prod(theirs):
            raise Invalid("a copy between regions of different sizes")
        b.buffer[b.at(theirs)] = a.buffer[a.at(extents)].reshape(theirs)

    def fill(self, buffer: Any, value: Any) -> None:
        to = region_of(buffer)
        to.buffer[to.at(to.filled(to.buffer.shape))] = value

    def clear(self, buffer: Any) -> None:
        self.fill(buffer, 0)

    # --- compute ---

    def gemm(
        self,
        A: Any,
        B: Any,
        C: Any,
        transpose_A: bool = False,
        transpose_B: bool = False,
        policy: Any = None,
        clear_accum: bool = False,
        allow_tf32: bool = False,
        fast_accum: bool = True,
        k_pack: int = 1,
    ) -> None:
        a, b = (_matrix(region_of(x)) for x in (A, B))
        a, b = (_turned(x) if turn else x for x, turn in ((a, transpose_A), (b, transpose_B)))
        c = region_of(C)
        extents = c.filled(c.buffer.shape)
        at, zero = c.at(extents), Number(np.zeros(extents), c.buffer.dtype)
        tf32 = allow_tf32 or TFLOAT32 in (a.dtype, b.dtype)
        c.buffer[at] = product(a, b, zero if clear_accum else c.buffer[at], tf32)

    # --- loops ---

    def every(self, *extents: Any, coalesced_width: Any = None) -> Iterator[Any]:
        """T.Parallel, all iterations at once."""
        shape = self._loop(extents)
        if math.prod(shape):
            self._enter(np.arange(math.prod(shape)).reshape(shape))
            yield _indices(np.ix_(*map(np.arange, shape)))
            self._place.iteration = None

    def each(self, *extents: Any, coalesced_width: Any = None) -> Iterator[Any]:
        """T.Parallel, one iteration after the other."""
        shape = self._loop(extents)
        self._enter(np.arange(math.prod(shape)))
        for number, at in enumerate(np.ndindex(shape)):
            self._place.iteration = np.asarray(number)
            yield _indices(at)
        self._place.iteration = None

    def _loop(self, extents: tuple[Any, ...]) -> tuple[int, ...]:
        if self._place.iteration is not None:
            raise Invalid("a T.Parallel within another one, or within a thread's code")
        return _extents(extents)

    @contextmanager
    def when(self, condition: Any, holds: bool) -> Iterator[None]:
        """`if condition:` (`holds`), or its else, of all iterations at once."""
        if isinstance(condition, Number) and not condition.exact():
            raise Unclear("a branch hangs on a number that is rounded")
        taken = np.asarray(condition.value if isinstance(condition, Number) else condition, bool)
        before = self._place.mask
        assert self._place.iteration is not None
        mask = np.broadcast_to(taken == holds, self._place.iteration.shape)
        self._place.mask = mask if before is None else mask & before
        yield
        self._place.mask = before

    def _enter(self, iterations: Array) -> None:
        self._place.loops += 1
        self._place.loop = self._place.loops
        self._place.iteration = iterations

    def serial(self, start: Any, stop: Any = None, step: int = 1) -> Iterator[Number]:
        low, high = (0, int(start)) if stop is None else (int(start), int(stop))
        for turn, i in enumerate(range(low, high, int(step))):
            if turn > MOST_ITERATIONS:
                raise Invalid("a loop of very many iterations")
            yield index(i)

    unroll = vectorized = serial

    def Pipelined(self, start: Any, stop: Any = None, **options: Any) -> Iterator[Number]:
        return self.serial(start, stop)

    def turns(self, condition: Callable[[], Any]) -> Iterator[None]:
        """`while condition():`, not for ever."""
        for _ in range(MOST_ITERATIONS):
            if not condition():
                return
            yield
        raise Invalid("a loop that does not end")

    # --- what changes no number ---

    def annotate_safe_value(self, values: Mapping[Buffer, Any]) -> None:
        for buffer, value in values.items():
            buffer.safe = value

    def annotate_schedule(self, *args: Any, **options: Any) -> None:
        pass

    annotate_layout = use_swizzle = print = Layout = annotate_schedule


def _indices(values: Sequence[Any]) -> Any:
    """What a loop over several dimensions gives its names: one number, or a tuple."""
    found = tuple(index(v) for v in values)
    return found[0] if len(found) == 1 else found


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(int(e) for e in (shape if isinstance(shape, tuple) else (shape,)))


def _trimmed(extents: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Extents less leading ones, as many as `rank` at most."""
    while len(extents) > rank and extents[0] == 1:
        extents = extents[1:]
    return extents


def _matrix(r: Region) -> Number:
    extents = r.filled(r.buffer.shape)
    return r.buffer[r.at(extents)].reshape(extents[-2:])


def _turned(x: Number) -> Number:
    return Number(x.value.T, x.dtype, x.error.T)


def product(a: Number, b: Number, c: Number, tf32: bool) -> Number:
    """C + A @ B in C's dtype. Exact where every partial sum, in whatever order, fits the sum's
    mantissa; else within a bound that grows with the root of the length (rounding errors of either
    sign) times the sum of the absolute values."""
    if not c.dtype.is_float:
        made = a.value.astype(np.int64) @ b.value.astype(np.int64) + c.value
        return Number(made.astype(c.value.dtype), c.dtype, c.error)
    x, y = a.value, b.value
    ex, ey = a.errors(), b.errors()
    bits = {"f16": 11, "f32": 24, "f64": 53}[c.dtype.short]
    if a.dtype.bits == 8 and c.dtype is FLOAT32:
        bits = 13  # what Hopper's tensor cores keep of a sum of float8
    if tf32:
        ex = np.where(inexact_tf32(x), ex + np.abs(x) * 2.0**-11, ex)
        ey = np.where(inexact_tf32(y), ey + np.abs(y) * 2.0**-11, ey)
    with np.errstate(all="ignore"):
        value = x @ y + c.value
        size = np.abs(x) @ np.abs(y) + np.abs(c.value)
        moved = np.abs(x) @ ey + ex @ np.abs(y) + ex @ ey + c.errors()
    step = grain(x) * grain(y)
    step = min(step, grain(c.value)) if step else 0.0
    exact = (moved == 0) & (size <= step * 2.0**bits)
    root = math.sqrt(x.shape[1] + 16.0)
    rough = size * 2.0**-bits * root * 2 + size * unit(FLOAT16 if c.dtype is FLOAT16 else c.dtype)
    error = np.where(exact, 0.0, moved + rough)
    beyond = ~(size < (60000.0 if c.dtype is FLOAT16 else 1e38))
    return Number(value, c.dtype, np.where(beyond, np.inf, error)).to(c.dtype)
