"""Reductions of tiles."""

from __future__ import annotations

from typing import Any

__all__ = [
    "all_of", "alloc_reducer", "any_of", "cummax", "cumsum", "finalize_reducer", "reducer_init",
    "reducer_update", "reduce", "reduce_absmax", "reduce_abssum", "reduce_bitand", "reduce_bitor",
    "reduce_bitxor", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum",
]  # fmt: skip


def reduce(
    buffer: Any,
    out: Any,
    reduce_type: str,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
) -> None:
    """Combine the elements of tile `buffer` along dimension `dim` into tile `out`.

    `reduce_type`: "sum", "prod", "max", "min", "abssum", "absmax", "bitand", "bitor" or "bitxor".
    Both are fragments or shared tiles, of any extents; `out` has the shape without `dim`, or with
    an extent of 1 there ((1,) where nothing is left). `clear=False`: the old value of `out` is
    combined with the result. A negative `dim` counts from the end. `batch` changes nothing: how
    many rows are combined at once is tilec's choice.

    Sums and products of floats, or into floats, are computed in float32 (float64: in float64) and
    rounded once, to the dtype of `out`; others in the wider of both dtypes, modulo 2**bits.
    Maximum and minimum leave nans out, as `T.max` does; with `nan_propagate` a nan among the
    elements is the result. The order of additions is fixed: repeated runs agree in every bit.

    Raises CompileError for tensors (copy them first), dimensions that `buffer` has not, an `out` of
    another shape, and bitwise reductions of floats.
    """


def reduce_sum(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1) -> None:
    """The sum along `dim`; see `reduce`."""


def reduce_max(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
) -> None:
    """The largest element along `dim`; see `reduce`."""


def reduce_min(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
) -> None:
    """The smallest element along `dim`; see `reduce`."""


def reduce_prod(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1) -> None:
    """The product of elements along `dim`, computed and rounded as a sum is; see `reduce`."""


def reduce_abssum(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1) -> None:
    """The sum of absolute values along `dim`; see `reduce`."""


def reduce_absmax(
    buffer: Any,
    out: Any,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
) -> None:
    """The largest absolute value along `dim`; see `reduce`."""


def reduce_bitand(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1) -> None:
    """The bits that all ints (or bools) along `dim` have; see `reduce`."""


def reduce_bitor(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1) -> None:
    """The bits that any int (or bool) along `dim` has; see `reduce`."""


def reduce_bitxor(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1) -> None:
    """The bits that an odd number of ints (or bools) along `dim` has; see `reduce`."""


def cumsum(
    src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, annotations: Any = None
) -> None:
    """Running sums along `dim`: element i of `dst` is the sum of the elements 0 to i of `src`; with
    `reverse` that of element i and those behind it.

    Both are fragments or shared tiles of one shape, of any extents, or regions of these; without
    `dst` the result replaces `src`. A negative `dim` counts from the end. Sums are computed as
    those of `reduce` are, and rounded once each. `annotations` is accepted and decides nothing.

    Raises CompileError for tensors (copy them first), shapes that differ, dimensions that `src` has
    not.
    """


def cummax(
    src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, annotations: Any = None
) -> None:
    """Running maxima along `dim`, which leave nans out, as `T.max` does; see `cumsum`."""


def any_of(buffer: Any) -> Any:
    """Whether any element of a tile or region is not 0: a bool, the same in all threads that see
    the same elements. `buffer`: a tensor, shared tile or fragment, or a region (`mask[b, 0:n]`), of
    bools or numbers; nan counts as not 0. The elements are read one after the other.
    """


def all_of(buffer: Any) -> Any:
    """Whether no element of a tile or region is 0; see `any_of`."""


def alloc_reducer(shape: Any, dtype: object, op: str = "sum", replication: Any = None) -> Any:
    """A tile of results to which the iterations of parallel loops contribute.

        acc = T.alloc_reducer((M,), "float32", op="sum")
        T.reducer_init(acc)
        for k in T.serial(n):
            for i, j in T.Parallel(M, N):
                T.reducer_update(acc[i], x[i, j])
        T.finalize_reducer(acc, dst)

    `op`: "sum", "max", "min", and of ints "bitand", "bitor", "bitxor". Floats below float32 are
    combined in float32. `replication`, which chose between two forms of storage, changes nothing.
    In T.Parallel `acc[i] += x`, `acc[i] = T.max(acc[i], x)` and `T.min` contribute, too, and a
    reducer may begin with T.clear or T.fill. Raises CompileError for bits of floats.
    """


def reducer_init(reducer: Any, init: Any = None) -> None:
    """Give all of a reducer's results their first value: `init`, which counts once, or what changes
    no result. Before the first `reducer_update`."""


def reducer_update(target: Any, value: Any) -> None:
    """In T.Parallel: combine `value` of this iteration, once, with the reducer's element `target`.

    It may stand under a condition or in a serial loop of the iteration. The order of combination
    is fixed, and repeated runs agree in every bit, where each index of `target`, `acc[i]`, is one
    of the loop's own that runs over all of its dimension, the same for all iterations, or of at
    most 16 elements. Other contributions meet in shared memory, by atomics.
    """


def finalize_reducer(reducer: Any, dst: Any = None, batch: int = 1) -> None:
    """Write a reducer's results to `dst`, a tile or region of its shape, converted to its dtype;
    without one they are read from the reducer itself. `batch` changes nothing."""
