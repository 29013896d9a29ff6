"""Updates of memory that several threads or blocks make to one element."""

from __future__ import annotations

from builtins import bool as _Bool
from typing import Any

__all__ = [
    "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_cas",
    "atomic_exchange", "atomic_addx2", "atomic_addx4", "atomic_load", "atomic_store",
]  # fmt: skip


def atomic_add(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: _Bool = False,
    use_tma: _Bool = False,
) -> Any:
    """Add `value` to an element of a tensor or a shared tile, `dst`, or a tile to a tile of it.

    `T.atomic_add(C[i, j], x)` is done by each thread, or iteration of `T.Parallel`, that comes
    here; no other atomic comes between its read and its write. With `return_prev` it gives what was
    there. `T.atomic_add(C[i, j], tile)` adds each element of a fragment or shared tile to the tile
    of C that starts there. A whole buffer as `dst` is a tile, also with a number as `value`: the
    block does it once, unless the number or a condition around it is a single thread's, or it is in
    `T.Parallel` or gives what was there. Out of a tensor's bounds nothing is done, and 0 is given.

    All ints of 8 bits and more, float16, bfloat16, float32, float64; a loop of compare-and-swap
    where the target has no instruction. The order of additions is not fixed: sums of floats may
    differ in their last bits from run to run.

    `memory_order`: "relaxed" (the default) orders nothing else; "release" lets whoever acquires
    what it has left see all that this thread did before, "acquire" is the other side, "acq_rel" and
    "seq_cst" both.

    With `use_tma` a tile is combined by TMA, if the target has it: one thread starts it, and the
    other threads go on (`cp.reduce.async.bulk.tensor`). `value` is a whole shared tile of dst's
    dtype, or what a matrix instruction has left, which goes through shared memory; `dst` a part of
    a tensor that the kernel uses for atomics alone. There are sums of int32, int64 and their
    unsigned forms, float16, bfloat16 and float32; minima and maxima of the ints; bitwise forms of
    int32 and uint32. Where TMA cannot do it, threads do, and a PerformanceWarning says why; so do
    the stages (`select_copies`: `atomic_tile … engine=threads`). Sums are the same either way, but
    for the order of additions.

    Raises CompileError for a fragment or local buffer as `dst`, other dtypes, tiles of other
    shapes, and an unknown `memory_order`.
    """


def atomic_max(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: _Bool = False,
    use_tma: _Bool = False,
) -> Any:
    """Leave the larger of `dst` and `value`; a nan is left out. See `atomic_add`."""


def atomic_min(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: _Bool = False,
    use_tma: _Bool = False,
) -> Any:
    """Leave the smaller of `dst` and `value`; a nan is left out. See `atomic_add`."""


def atomic_and(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: _Bool = False,
    use_tma: _Bool = False,
) -> Any:
    """Leave the bits that both have. See `atomic_add`."""


def atomic_or(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: _Bool = False,
    use_tma: _Bool = False,
) -> Any:
    """Leave the bits that either has. See `atomic_add`."""


def atomic_xor(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: _Bool = False,
    use_tma: _Bool = False,
) -> Any:
    """Leave the bits that one of both has. See `atomic_add`."""


def atomic_exchange(
    dst: Any, value: Any, memory_order: str | None = None, return_prev: _Bool = True
) -> Any:
    """Leave `value`; gives what was there. See `atomic_add`."""


def atomic_cas(dst: Any, compare: Any, value: Any, memory_order: str | None = None) -> Any:
    """Leave `value` where `dst` is `compare`; gives what was there, which is `compare` where it has
    been replaced. `dst` is an element of ints, `compare` and `value` are ints. See `atomic_add`.

    `while T.atomic_cas(lock[0], 0, 1, memory_order="acquire") != 0:` waits for a lock, which
    `T.atomic_store(lock[0], 0, memory_order="release")` gives up. Threads of one warp must not wait
    for one another so: not every GPU lets them go on apart.

    Raises CompileError for elements that are no ints, and floats as `compare` or `value`.
    """


def atomic_addx2(dst: Any, value: Any, return_prev: _Bool = False) -> Any:
    """Add two neighbours of the last dimension, that begin at the places `dst` and `value`, each by
    an atomic of its own; with `return_prev` give what was there, a short vector."""


def atomic_addx4(dst: Any, value: Any, return_prev: _Bool = False) -> Any:
    """Add four neighbours of the last dimension, that begin at the places `dst` and `value`, each
    by an atomic of its own; with `return_prev` give what was there, a short vector."""


def atomic_load(src: Any, memory_order: str = "seq_cst") -> Any:
    """An element that other threads change by atomics, as it is now. `memory_order` as that of
    `atomic_add`. Raises CompileError for an element that no other thread sees."""


def atomic_store(dst: Any, src: Any, memory_order: str = "seq_cst") -> None:
    """Set an element that other threads look at by atomics. `memory_order` as that of `atomic_add`.
    Raises CompileError for an element that no other thread sees."""
