"""Helpers around matrix instructions; `TensorCoreIntrinEmitter` for kernels that say which thread
holds what: its methods are macros, which a kernel calls with its buffers."""

from __future__ import annotations

from typing import Any

from tilec import language as T
from tilec.builtins.annotations import dtype_of
from tilec.ir.caller import caller_loc, for_users
from tilec.ir.errors import CompileError, LayoutError
from tilec.ir.types import find_dtype
from tilec.layout import make_mma_swizzle_layout

# mypy: disable-error-code="no-untyped-def"

__all__ = ["TensorCoreIntrinEmitter", "get_swizzle_layout", "make_mma_swizzle_layout"]


@for_users
def get_swizzle_layout(
    row: Any, column: Any, row_size: int, dtype: object, swizzle_bytes: int | None = None
) -> tuple[Any, Any]:
    """Where the element at (row, column) of a tile with rows of `row_size` elements goes: the
    16-byte chunks of each line of `swizzle_bytes` (default: a row's bytes, at most 128) change
    places by the row's number. For `T.Layout(shape, lambda i, j: get_swizzle_layout(…))`.

    Raises LayoutError for an unknown dtype, and for rows of other than whole lines of 32, 64 or
    128 bytes.
    """
    known = find_dtype(dtype if isinstance(dtype, str) else str(getattr(dtype, "name", dtype)))
    if known is None:
        raise LayoutError(f"{dtype!r} is not a dtype", hint='write "float16", say')
    row_bytes = row_size * known.bits // 8
    line = min(128, row_bytes) if swizzle_bytes is None else swizzle_bytes
    if line not in (32, 64, 128) or row_bytes % line:
        raise LayoutError(
            f"rows of {row_bytes} bytes have no swizzle of {line}",
            hint="rows are whole lines of 32, 64 or 128 bytes",
        )
    chunk, chunks = 128 // known.bits, line // 16
    return row, (column // chunk ^ row % chunks) * chunk + column % chunk


_PRODUCTS = (
    ("float16", "float16", "float16"),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("int8", "int8", "int32"),
)


class TensorCoreIntrinEmitter:
    """Loads, products and stores of a block of `block_row_warps` x `block_col_warps` warps, each of
    which computes `warp_row_tiles` x `warp_col_tiles` elements, `chunk` along k at a time, by
    `mma.sync` (16x16 elements of C take two).

    A is (rows, k) in shared memory, or (k, rows) if `a_transposed`; B is (k, columns), or (columns,
    k) if `b_transposed`. dtypes: float16 or bfloat16 with float32, float16 with float16, int8 with
    int32. In local memory a thread has `local_size_a`, `local_size_b` and `local_size_c` elements
    of each 16 rows or columns of a step along k, `micro_size_k`. Elements are loaded and stored one
    by one, not by `ldmatrix` and `stmatrix`. Warps that the block has beyond these do the same as
    others. Raises CompileError for other dtypes, and for sizes that are no multiples.
    """

    def __init__(
        self,
        a_dtype: object = "float16",
        b_dtype: object = "float16",
        accum_dtype: object = "float16",
        a_transposed: bool = False,
        b_transposed: bool = False,
        block_row_warps: int = 2,
        block_col_warps: int = 2,
        warp_row_tiles: int = 16,
        warp_col_tiles: int = 16,
        chunk: int = 16,
        reduce_k: int = 1,
        num_elems_per_byte: int = 1,
        is_m_first: bool = False,
        thread_var: Any = None,
    ) -> None:
        self.a_dtype, self.b_dtype, self.accum_dtype = a_dtype, b_dtype, accum_dtype
        self.a_transposed, self.b_transposed = a_transposed, b_transposed
        self.block_row_warps, self.block_col_warps = block_row_warps, block_col_warps
        self.warp_row_tiles, self.warp_col_tiles, self.chunk = warp_row_tiles, warp_col_tiles, chunk
        self.is_m_first = is_m_first
        dtypes = tuple(dtype_of(d).name for d in (a_dtype, b_dtype, accum_dtype))
        if dtypes not in _PRODUCTS:
            known = "; ".join(", ".join(names) for names in _PRODUCTS)
            message = f"no mma.sync of {', '.join(dtypes)} (A, B, sums)"
            raise CompileError(message, caller_loc(), f"there are: {known}")
        if (reduce_k, num_elems_per_byte) != (1, 1):
            message = f"reduce_k={reduce_k}, num_elems_per_byte={num_elems_per_byte}"
            hint = "leave them out: one warp sums along k, of elements of a byte or more"
            raise CompileError(message, caller_loc(), hint)
        self.per = 32 // dtype_of(a_dtype).bits  # elements of a register
        self.micro_size_x = self.micro_size_y = 16
        self.micro_size_k = 8 * self.per
        for what, size, unit in (
            ("block_row_warps", block_row_warps, 1),
            ("block_col_warps", block_col_warps, 1),
            ("warp_row_tiles", warp_row_tiles, 16),
            ("warp_col_tiles", warp_col_tiles, 16),
            ("chunk", chunk, self.micro_size_k),
        ):
            if size < unit or size % unit:
                message = f"{what} is {size}, not a multiple of {unit}"
                raise CompileError(message, caller_loc(), f"write {max(unit, size // unit * unit)}")
        self.warp_rows, self.warp_cols = warp_row_tiles // 16, warp_col_tiles // 16
        self.local_size_a = self.local_size_b = 16 * self.micro_size_k // 32
        self.local_size_c = 8
        self.shape = f"m16n8k{self.micro_size_k}"

    @T.macro
    def warps(self):
        """This thread's warp among the rows and the columns of warps, and its lane."""
        warp = T.get_warp_idx(32)
        rows, columns = self.block_row_warps, self.block_col_warps
        if self.is_m_first:
            return warp // columns % rows, warp % columns, T.get_lane_idx(32)
        return warp % rows, warp // rows % columns, T.get_lane_idx(32)

    @T.macro
    def ldmatrix_a(self, A_local, A_shared, ki, rk=0):  # noqa: N803
        """This warp's rows of A, step `ki` along k, to local memory."""
        warp, _, lane = self.warps()
        for i in T.unroll(self.warp_rows):
            for e in T.unroll(self.local_size_a):
                unit, within = e // self.per, e % self.per
                row = warp * self.warp_row_tiles + i * 16 + lane // 4 + 8 * (unit % 2)
                k = rk * self.chunk + ki * self.micro_size_k + unit // 2 * (4 * self.per)
                k = k + lane % 4 * self.per + within
                if self.a_transposed:
                    A_local[i * self.local_size_a + e] = A_shared[k, row]
                else:
                    A_local[i * self.local_size_a + e] = A_shared[row, k]

    @T.macro
    def ldmatrix_b(self, B_local, B_shared, ki, rk=0):  # noqa: N803
        """This warp's columns of B, step `ki` along k, to local memory."""
        _, warp, lane = self.warps()
        for j in T.unroll(self.warp_cols):
            for e in T.unroll(self.local_size_b):
                half, place = e // (2 * self.per), e % (2 * self.per)
                column = warp * self.warp_col_tiles + j * 16 + half * 8 + lane // 4
                k = rk * self.chunk + ki * self.micro_size_k + place // self.per * (4 * self.per)
                k = k + lane % 4 * self.per + place % self.per
                if self.b_transposed:
                    B_local[j * self.local_size_b + e] = B_shared[column, k]
                else:
                    B_local[j * self.local_size_b + e] = B_shared[k, column]

    @T.macro
    def mma(self, A_local, B_local, C_local, k_inner=0):  # noqa: N803
        """C += A B, of what the warp holds."""
        for i in T.unroll(self.warp_rows):
            for j in T.unroll(self.warp_cols):
                for half in T.unroll(2):
                    T.ptx_mma(
                        self.accum_dtype,
                        self.shape,
                        "row",
                        "col",
                        self.a_dtype,
                        self.b_dtype,
                        self.accum_dtype,
                        A_local,
                        (k_inner * self.warp_rows + i) * self.local_size_a,
                        B_local,
                        (k_inner * self.warp_cols + j) * self.local_size_b
                        + half * (self.local_size_b // 2),
                        C_local,
                        (i * self.warp_cols + j) * self.local_size_c + half * 4,
                    )

    @T.macro
    def stmatrix(self, C_local, C_buf, pid_m=None, pid_n=None):  # noqa: N803
        """The warp's sums to `C_buf`: a shared buffer of (rows / 16, columns / 16, 16, 16), or,
        with the block's indices, a tensor of two dimensions."""
        warp_m, warp_n, lane = self.warps()
        for i in T.unroll(self.warp_rows):
            for j in T.unroll(self.warp_cols):
                for e in T.unroll(self.local_size_c):
                    row = lane // 4 + 8 * (e % 4 // 2)
                    column = e // 4 * 8 + lane % 4 * 2 + e % 2
                    m, n = warp_m * self.warp_rows + i, warp_n * self.warp_cols + j
                    value = C_local[(i * self.warp_cols + j) * self.local_size_c + e]
                    if pid_m is None:
                        C_buf[m, n, row, column] = value
                    else:
                        m = pid_m * self.block_row_warps * self.warp_rows + m
                        n = pid_n * self.block_col_warps * self.warp_cols + n
                        C_buf[m * 16 + row, n * 16 + column] = value
