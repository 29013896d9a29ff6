"""What the emitters of all vendors have in common: which warp a thread belongs to, and where its
sums go."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from tilec import language as T
from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError

# mypy: disable-error-code="no-untyped-def"


@dataclass(eq=False)
class Warps:
    """A block of `block_row_warps` x `block_col_warps` warps, the rows' or (`is_m_first`) the
    columns' number running fastest, and what they multiply."""

    a_dtype: object = "float16"
    b_dtype: object = "float16"
    accum_dtype: object = "float16"
    a_transposed: bool = False
    b_transposed: bool = False
    block_row_warps: int = 2
    block_col_warps: int = 2
    warp_row_tiles: int = 16
    warp_col_tiles: int = 16
    chunk: int = 16
    reduce_k: int = 1
    num_elems_per_byte: int = 1
    _: KW_ONLY
    is_m_first: bool | None = False
    thread_var: Any = None

    WARP_SIZE: ClassVar[int]
    store_at: ClassVar[Any]  # a macro: row and column of a lane's element of one tile of the sums
    bring: ClassVar[Any]  # a macro: a warp's rows of A, or columns of B, to local memory
    micro_size_x: int = field(init=False)
    micro_size_y: int = field(init=False)
    warp_rows: int = field(init=False)
    warp_cols: int = field(init=False)
    local_size_out: int = field(init=False)

    def __post_init__(self) -> None:
        self.is_m_first = bool(self.is_m_first)
        self.threads = self.WARP_SIZE * self.block_row_warps * self.block_col_warps * self.reduce_k

    def check_sizes(self, **units: int) -> None:
        """Raises CompileError for a size that is no multiple of its unit (others' is 1)."""
        for what, unit in (
            {"block_row_warps": 1, "block_col_warps": 1, "reduce_k": 1} | units
        ).items():
            size = getattr(self, what)
            if size < unit or size % unit:
                message = f"{what} is {size}, not a multiple of {unit}"
                raise CompileError(message, caller_loc(), f"write {max(unit, size // unit * unit)}")

    @T.macro
    def extract_thread_binding(self, thread_id, is_m_first=None):
        """(lane, warp among the columns, warp among the rows) of a thread's number."""
        warp, rows, columns = (
            thread_id // self.WARP_SIZE,
            self.block_row_warps,
            self.block_col_warps,
        )
        lane = thread_id % self.WARP_SIZE
        if self.is_m_first if is_m_first is None else is_m_first:
            return lane, warp % columns, warp // columns % rows
        return lane, warp // rows % columns, warp % rows

    @T.macro
    def get_thread_binding(self):
        """The number of this thread in its block."""
        if self.thread_var is None:
            return T.get_warp_idx(32) * 32 + T.get_lane_idx(32)
        return self.thread_var

    @T.macro
    def place(self):
        """`extract_thread_binding` of this thread."""
        return self.extract_thread_binding(self.get_thread_binding())

    @T.macro
    def ldmatrix_a(self, A_local, A_shared, ki, rk=0):  # noqa: N803
        """This warp's rows of A, step `ki` along k, to local memory."""
        lane, _, warp = self.place()
        self.bring(A_local, A_shared, lane, warp, ki, rk)

    @T.macro
    def ldmatrix_b(self, B_local, B_shared, ki, rk=0):  # noqa: N803
        """This warp's columns of B, step `ki` along k, to local memory."""
        lane, warp, _ = self.place()
        self.bring(B_local, B_shared, lane, warp, ki, rk, is_b=True)

    @T.macro
    def stmatrix(self, C_local, C_buf, pid_m=None, pid_n=None):  # noqa: N803
        """The warp's sums to `C_buf`: a shared buffer of (rows / micro_size_x, columns /
        micro_size_y, micro_size_x, micro_size_y) or of (rows, columns) elements, or, with the
        block's indices, a tensor of two dimensions."""
        lane, warp_n, warp_m = self.place()
        for i in T.unroll(self.warp_rows):
            for j in T.unroll(self.warp_cols):
                for e in T.unroll(self.local_size_out):
                    row, column = self.store_at(lane, e)
                    m, n = warp_m * self.warp_rows + i, warp_n * self.warp_cols + j
                    value = C_local[(i * self.warp_cols + j) * self.local_size_out + e]
                    if pid_m is not None:
                        m = pid_m * self.block_row_warps * self.warp_rows + m
                        n = pid_n * self.block_col_warps * self.warp_cols + n
                    if len(C_buf.shape) == 4:
                        C_buf[m, n, row, column] = value
                    else:
                        C_buf[m * self.micro_size_x + row, n * self.micro_size_y + column] = value
