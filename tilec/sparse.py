"""2:4 structured sparsity: matrices of whose every four neighbours in a row at least two are zero,
as `T.gemm_sp` takes them.

A compressed matrix is two arrays. For a dense one of K columns:

- the values, of half as many columns: of each group of four the two that are kept, in order.
  Elements of 32 bits are kept one of each two.
- the metadata, integers (int8, int16, int32 or unsigned): for each group four bits, its pattern,
  the first group of a row in the lowest bits of the row's first integer, row after row (this is
  the plain order of the `mma.sp::ordered_metadata` of PTX and of TileLang's compressor; CUTLASS and
  cuSPARSELt permute the same patterns). An integer describes as many columns as it has bits, of
  32-bit elements half as many.

The low two bits of a pattern are the place, 0 to 3, of the first value in its group, the high two
bits that of the second one, which is larger:

    group        values    pattern
    a 0 0 d      a d       0b1100        places 0 and 3
    0 b 0 0      0 b       0b0100        one kept zero, at place 0
    0 0 0 0      0 0       0b0100

A group of two 32-bit elements is one of four halves: 0b0100 keeps the first element, 0b1110 the
second. A pattern of zeros, which nobody has written, counts as 0b0100; no other one may be out of
order: what instructions make of it is undefined, and the simulator reports it.

`compress`, `decompress` and `prune` take NumPy arrays and torch tensors; tensors stay on their
device. Leading dimensions are batches."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilec.builtins.annotations import dtype_of
from tilec.ir.errors import CompileError, LaunchError
from tilec.ir.sparse import METADATA_DTYPES, PATTERN_BITS, SPARSE_DTYPES, group_size
from tilec.ir.types import DType

__all__ = ["compress", "decompress", "default_metadata", "prune"]


def default_metadata(dtype: object) -> str:
    """The dtype of the metadata of values of `dtype` where nothing else is asked for: "int16",
    "int32" of elements of one byte. Raises CompileError for dtypes without a 2:4 form."""
    return "int32" if _dtype(dtype).bits == 8 else "int16"


def compress(a: Any, metadata: object = None) -> tuple[Any, Any]:
    """The values (…, M, K / 2) and the metadata (…, M, K / n) of `a` (…, M, K).

    `metadata`: the dtype of the metadata (`default_metadata`); one of them describes n columns,
    which must divide K. Raises LaunchError for a matrix that keeps more than half of a group, for
    one of other dtypes or sizes, and for what is no array."""
    x = _Arrays(a)
    own = _dtype(default_metadata(x.dtype) if metadata is None else metadata, METADATA_DTYPES)
    size, bits = group_size(x.dtype.bits), x.dtype.bits
    per = own.bits // PATTERN_BITS * size
    if a.ndim < 2 or a.shape[-1] % per:
        raise LaunchError(
            f"a matrix of shape {tuple(a.shape)} has no metadata of {own.name}: one of them "
            f"describes {per} columns, which do not divide {a.shape[-1] if a.ndim else 1}",
            hint="pad the columns with zeros, or choose a narrower dtype for the metadata",
        )
    groups = x.grouped(a, size)
    kept = x.is_nonzero(groups)
    if bool((kept.sum(-1) > size // 2).any()):
        where = x.first(kept.sum(-1) > size // 2)
        raise LaunchError(
            f"more than {size // 2} of the {size} elements from "
            f"{[*where[:-1], where[-1] * size]} on are not zero",
            hint="make the matrix 2:4 sparse first: tilec.sparse.prune(a)",
        )
    places = x.places_of_largest(x.cast(kept, "int8"), size // 2)
    values = x.take(groups, places)
    if bits == 32:
        patterns = 4 + 10 * x.cast(places[..., 0], "int64")
    else:
        patterns = x.cast(places[..., 0], "int64") | (x.cast(places[..., 1], "int64") << 2)
    return x.flat(values, a), x.packed(patterns, own)


def decompress(values: Any, metadata: Any) -> Any:
    """The dense matrix (…, M, K) of `values` (…, M, K / 2) and `metadata` (…, M, K / n). Raises
    LaunchError for arrays that do not belong together."""
    x, e = _Arrays(values), _Arrays(metadata, METADATA_DTYPES)
    size = group_size(x.dtype.bits)
    per = e.dtype.bits // PATTERN_BITS * size
    wanted = (*values.shape[:-1], values.shape[-1] * 2 // per if values.ndim else 0)
    if tuple(metadata.shape) != wanted or values.ndim < 2 or values.shape[-1] * 2 % per:
        raise LaunchError(
            f"values of shape {tuple(values.shape)} and metadata of shape "
            f"{tuple(metadata.shape)} in {e.dtype.name} do not belong together",
            hint=f"one {e.dtype.name} describes {per // 2} values of {x.dtype.name} in a row",
        )
    patterns = e.patterns(metadata)
    first, second = patterns & 3, patterns >> 2
    held = x.grouped(values, size // 2)
    if size == 2:
        return x.spread(held, (first >> 1)[..., None], size, values)
    second = second + x.cast(second == 0, "int64")
    return x.spread(held, x.stack([first, second]), size, values)


def prune(a: Any) -> Any:
    """`a` (…, M, K) with all but the two of largest magnitude of each four neighbours in a row set
    to zero (of 32-bit elements all but one of two). K must be whole groups. Raises LaunchError."""
    x = _Arrays(a)
    size = group_size(x.dtype.bits)
    if a.ndim < 1 or a.shape[-1] % size:
        raise LaunchError(
            f"rows of {a.shape[-1] if a.ndim else 1} elements of {x.dtype.name} are not groups of "
            f"{size}",
            hint="pad the columns with zeros",
        )
    groups = x.grouped(a, size)
    places = x.places_of_largest(x.magnitudes(groups), size // 2)
    return x.spread(x.take(groups, places), places, size, a)


def _dtype(named: object, known: tuple[DType, ...] = SPARSE_DTYPES) -> DType:
    found = dtype_of(named)
    if found not in known:
        raise CompileError(
            f"{found.name} is not one of the dtypes {', '.join(d.name for d in known)}",
            hint="2:4 sparsity has values and metadata of these alone",
        )
    return found


class _Arrays:
    """What is computed of arrays, in the same words for NumPy and for torch, and the dtype of one.
    Values are moved by their bits, so that every dtype will do."""

    def __init__(self, a: Any, known: tuple[DType, ...] = SPARSE_DTYPES) -> None:
        self.torch = sys.modules.get("torch")
        self.is_torch = self.torch is not None and isinstance(a, self.torch.Tensor)
        if not self.is_torch and not isinstance(a, np.ndarray):
            raise LaunchError(
                f"this is {type(a).__name__}, not a matrix",
                hint="give a NumPy array or a torch tensor",
            )
        try:
            self.dtype = _dtype(str(a.dtype).rpartition(".")[2], known)
        except CompileError as error:
            raise LaunchError(error.message, hint=error.hint) from None
        self.lib: Any = self.torch if self.is_torch else np

    def cast(self, x: Any, name: str) -> Any:
        return x.to(getattr(self.lib, name)) if self.is_torch else x.astype(name)

    def grouped(self, a: Any, size: int) -> Any:
        """(…, K) as (…, K / size, size)."""
        a = a.contiguous() if self.is_torch else np.ascontiguousarray(a)
        return a.reshape(*a.shape[:-1], -1, size)

    def bits(self, x: Any) -> Any:
        """The elements' bits, as integers."""
        return x.view(getattr(self.lib, f"int{self.dtype.bits}"))

    def magnitudes(self, x: Any) -> Any:
        """As numbers that are in the order of the magnitudes; nan is the largest."""
        if self.dtype.is_int:
            return abs(self.cast(x, "int32"))
        wide = abs(self.cast(x, "float32"))
        return self.lib.where(wide == wide, wide, np.inf)

    def is_nonzero(self, x: Any) -> Any:
        return (self.cast(x, "float32") if self.dtype.is_float else x) != 0

    def first(self, x: Any) -> list[int]:
        """The index of the first that is true."""
        found = self.lib.nonzero(x) if self.is_torch else np.argwhere(x)
        return [int(i) for i in found[0]]

    def places_of_largest(self, keys: Any, count: int) -> Any:
        """The places of the `count` largest of each group, in order; of equal ones the first."""
        if self.is_torch:
            order = self.lib.sort(-keys, dim=-1, stable=True).indices[..., :count]
            return self.lib.sort(order, dim=-1).values
        order = np.argsort(-keys, axis=-1, kind="stable")[..., :count]
        return np.sort(order, axis=-1)

    def take(self, groups: Any, places: Any) -> Any:
        pick = self.lib.take_along_dim if self.is_torch else np.take_along_axis
        return pick(self.bits(groups), places, -1).view(groups.dtype)

    def flat(self, groups: Any, like: Any) -> Any:
        return groups.reshape(*like.shape[:-1], -1)

    def stack(self, parts: list[Any]) -> Any:
        return self.lib.stack(parts, -1)

    def spread(self, held: Any, places: Any, size: int, like: Any) -> Any:
        """Groups of `size` that have those `held` at their `places`, and zeros."""
        own = self.bits(held)
        shape = (*own.shape[:-1], size)
        if self.is_torch:
            dense = self.lib.zeros(shape, dtype=own.dtype, device=own.device)
            dense.scatter_(-1, places, own)
        else:
            dense = np.zeros(shape, own.dtype)
            np.put_along_axis(dense, places, own, -1)
        return self.flat(dense.view(held.dtype), like)

    def packed(self, patterns: Any, dtype: DType) -> Any:
        """Patterns (…, groups), one after the other, in integers of `dtype`."""
        count = dtype.bits // PATTERN_BITS
        parts = patterns.reshape(*patterns.shape[:-1], -1, count)
        word = parts[..., 0]
        for i in range(1, count):
            word = word | (parts[..., i] << (PATTERN_BITS * i))
        return self._low(word, dtype.bits).view(getattr(self.lib, dtype.name))

    def _low(self, words: Any, bits: int) -> Any:
        """The low `bits` of 64-bit integers, as signed ones of so many bits."""
        top = 1 << (bits - 1)
        return self.cast((words ^ top) - top, f"int{bits}")

    def patterns(self, metadata: Any) -> Any:
        """The inverse of `packed`, as 64-bit integers."""
        signed = metadata.view(getattr(self.lib, f"int{self.dtype.bits}"))
        words = self.cast(signed, "int64")[..., None]
        shifts = range(0, self.dtype.bits, PATTERN_BITS)
        parts = [(words >> s) & 15 for s in shifts]
        joined = self.lib.concatenate(parts, -1)
        return joined.reshape(*metadata.shape[:-1], -1)
