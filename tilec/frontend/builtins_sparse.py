"""Products with a compressed A (2:4 sparsity)."""

from __future__ import annotations

from tilec import language as T
from tilec.frontend.builtins import Call, builtin
from tilec.frontend.builtins_tile import (
    accumulator,
    check_dtypes,
    clears_first,
    factor,
    put_back,
    warp_policy,
)
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Tile, describe
from tilec.ir.ops import Gemm
from tilec.ir.sparse import METADATA_DTYPES, SPARSE_DTYPES, covered
from tilec.ir.types import DType

_COMPRESS = "tilec.sparse.compress makes values and metadata of a matrix"


@builtin(T.gemm_sp, of="tiles")
def gemm_sp(t: Expressions, c: Call) -> None:
    a, b = factor(t, c, "A_sparse"), factor(t, c, "B")
    acc, place = accumulator(t, c)
    dtype = a.buffer.type.dtype
    if dtype not in SPARSE_DTYPES:
        message = f"2:4 products of {dtype.name} are not supported: A_sparse is {t.tile_text(a)}"
        hint = f"inputs can be {', '.join(d.name for d in SPARSE_DTYPES)}"
        raise t.error(message, hint, c.place("A_sparse"))
    check_dtypes(t, dtype, b.buffer.type.dtype, acc, (a, b))
    e = _metadata(t, c)
    transposed = [c.flag(f"transpose_{x}") for x in "AEB"]
    (m, kept), (rows, words), (n, k) = (
        x.extents[-2:][:: -1 if swapped else 1]
        for x, swapped in zip((a, e, b), (transposed[0], transposed[1], not transposed[2]))
    )
    if k != 2 * kept:
        raise t.error(
            f"gemm_sp sums over K, of which A_sparse keeps half: {t.tile_text(a)} are {kept} for "
            f"K = {2 * kept}, but B has K = {k}: {t.tile_text(b)}",
            f"A_sparse is {_form('M', 'K / 2', transposed[0])}, "
            f"B {_form('K', 'N', transposed[2])} here",
            c.place("A_sparse"),
        )
    _check_metadata(t, c, e, dtype, (m, k), (rows, words), transposed[1])
    if acc.type.static_shape != (m, n):
        hint = f'allocate C with T.alloc_fragment(({m}, {n}), "{acc.type.dtype.name}")'
        raise t.error(f"gemm_sp gives a ({m}, {n}) tile, but C is {describe(acc)}", hint)
    c.integer("k_pack", 1)
    policy, clears = warp_policy(t, c), clears_first(t, c, acc)
    t.emit(
        Gemm,
        t.box(a),
        t.box(b),
        acc.value,
        metadata=t.box(e),
        transpose_a=transposed[0],
        transpose_metadata=transposed[1],
        transpose_b=transposed[2],
        clear=clears,
        policy=policy,
        allow_tf32=c.flag("allow_tf32") or (t.options.tilelang and dtype.name == "float32"),
    )
    put_back(t, acc, place)


def _metadata(t: Expressions, c: Call) -> Tile:
    e = factor(t, c, "E")
    names = ", ".join(d.name for d in METADATA_DTYPES)
    if e.buffer.type.space != "shared":
        hint = "copy it into one first: T.copy(…, E_shared)"
        raise c.wrong("E", f"is {describe(e.buffer)}; metadata must be a shared tile", hint)
    if e.buffer.type.dtype not in METADATA_DTYPES:
        raise c.wrong("E", f"is {t.tile_text(e)}; metadata can be {names}", _COMPRESS)
    return e


def _check_metadata(
    t: Expressions,
    c: Call,
    e: Tile,
    dtype: DType,
    dense: tuple[int, int],
    given: tuple[int, int],
    transposed: bool,
) -> None:
    """Raise CompileError unless `e`, `given` words of so many rows, describe A (M, K) of `dtype`,
    `dense`."""
    m, k = dense
    own = e.buffer.type.dtype
    per = covered(dtype.bits, own.bits)
    if k % per:
        smaller = [d.name for d in METADATA_DTYPES if k % covered(dtype.bits, d.bits) == 0]
        raise t.error(
            f"one {own.name} of E describes {per} elements of a row of {dtype.name}, which do not "
            f"divide K = {k}",
            f"make E of {' or '.join(smaller)}" if smaller else f"let K be a multiple of {per}",
            c.place("E"),
        )
    if given != (m, k // per):
        shape = (k // per, m) if transposed else (m, k // per)
        raise t.error(
            f"E of T.gemm_sp is {t.tile_text(e)}; the metadata of A ({m}, {k}) of {dtype.name} are "
            f"{shape} in {own.name}",
            f'allocate E with T.alloc_shared({shape}, "{own.name}")',
            c.place("E"),
        )


def _form(rows: str, columns: str, swapped: bool) -> str:
    return f"({columns}, {rows})" if swapped else f"({rows}, {columns})"
