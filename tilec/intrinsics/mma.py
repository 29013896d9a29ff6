"""`TensorCoreIntrinEmitter`: `mma.sync` for kernels that say which thread holds what.

What lanes hold is in the PTX ISA, "Matrix fragments for mma.m16n8k16" and its neighbours: of A lane
l has the rows l / 4 and l / 4 + 8, of B the column l / 4, of C the rows of A and two neighbouring
columns."""

from __future__ import annotations

from dataclasses import dataclass

from tilec import language as T
from tilec.builtins.annotations import dtype_of
from tilec.intrinsics.warps import Warps
from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError

# mypy: disable-error-code="no-untyped-def"

_INT8, _FLOAT8 = ("int8", "uint8"), ("float8_e4m3", "float8_e5m2")
_PRODUCTS = (
    ("float16", "float16", "float16"),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    *((a, b, "int32") for a in _INT8 for b in _INT8),
    *((a, b, "float32") for a in _FLOAT8 for b in _FLOAT8),
)


@dataclass(eq=False)
class TensorCoreIntrinEmitter(Warps):
    """Loads, products and stores of a block of `block_row_warps` x `block_col_warps` warps, each of
    which computes `warp_row_tiles` x `warp_col_tiles` elements, `chunk` along k at a time, by
    `mma.sync` (16x16 elements of C take two).

    A is (rows, k) in shared memory, or (k, rows) if `a_transposed`; B is (k, columns), or (columns,
    k) if `b_transposed`. dtypes: float16 or bfloat16 with float32, float16 with float16, float32
    (multiplied as TF32) with float32, float8 (a GPU of sm_89) with float32, int8 and uint8 with
    int32, float64 with float64. In local memory a thread has `local_size_a`, `local_size_b` and
    `local_size_out` elements of each `micro_size_x` rows and `micro_size_y` columns of a step along
    k, `micro_size_k`: `warp_rows` and `warp_cols` times. They are loaded by `ldmatrix`
    (`T.ldmatrix`), but for float64 and, where the rows in shared memory do not run along k, what
    has other than 16 bits; they are stored one by one. Threads are counted along all dimensions of
    the block, unless `thread_var` gives their number; `reduce_k` warps, `rk` of the loads, may
    share the sums along k. Warps that the block has beyond these do the same as others. Raises
    CompileError for other dtypes, and for sizes that are no multiples.
    """

    WARP_SIZE = 32
    MAY_PACK = False  # whether several elements may share a byte

    def __post_init__(self) -> None:
        super().__post_init__()
        dtypes = tuple(dtype_of(d).name for d in (self.a_dtype, self.b_dtype, self.accum_dtype))
        if dtypes not in _PRODUCTS:
            known = "; ".join(", ".join(names) for names in _PRODUCTS)
            message = f"no mma.sync of {', '.join(dtypes)} (A, B, sums)"
            raise CompileError(message, caller_loc(), f"there are: {known}")
        if self.num_elems_per_byte != 1 and not self.MAY_PACK:
            message = f"num_elems_per_byte={self.num_elems_per_byte}"
            hint = "leave it out: elements have a byte or more"
            raise CompileError(message, caller_loc(), hint)
        bits = dtype_of(self.a_dtype).bits
        self.per = max(1, 32 // bits)  # elements of a register
        self.micro_size_x, self.micro_size_k = (8, 4) if bits == 64 else (16, 256 // bits)
        if self.micro_size_k == 2 * self.chunk and bits < 64:
            self.micro_size_k = self.chunk
        self.micro_size_y = 8 if bits == 64 or self.warp_col_tiles % 16 else 16
        self.check_sizes(
            warp_row_tiles=self.micro_size_x, warp_col_tiles=8, chunk=self.micro_size_k
        )
        self.k_dim, self.M_DIM, self.n_dim = self.micro_size_k, self.micro_size_x, self.micro_size_y
        self.warp_rows = self.warp_row_tiles // self.micro_size_x
        self.warp_cols = self.warp_col_tiles // self.micro_size_y
        self.local_size_a = self.micro_size_x * self.micro_size_k // 32
        self.local_size_b = self.micro_size_y * self.micro_size_k // 32
        self.local_size_out = self.local_size_c = self.micro_size_x * self.micro_size_y // 32
        self.mma_prefix = self.shape = f"m{self.M_DIM}n8k{self.micro_size_k}"

    @staticmethod
    def ldmatrix_may(dtype: object, transposed: bool) -> bool:
        """Whether ldmatrix gives lanes what they need of an operand whose rows run along k, or
        (`transposed`) do not."""
        return dtype_of(dtype).bits in ((16,) if transposed else (8, 16, 32))

    @property
    def mma_num_inst_m(self) -> int:
        """How many times `mma_atom` goes along the rows."""
        return self.warp_rows

    @property
    def mma_num_inst_n(self) -> int:
        """How many times `mma_atom` goes along the columns."""
        return self.warp_cols

    def units(self, is_b: bool) -> list[tuple[int, int]]:
        """Where, along the rows of A (or columns of B) and along k, the four lanes begin that have
        one of them together: register by register."""
        along = 4 * self.per
        if is_b:
            steps = self.micro_size_k // along
            count = self.local_size_b // self.per
            return [(u // steps * 8, u % steps * along) for u in range(count)]
        halves, count = self.micro_size_x // 8, self.local_size_a // self.per
        return [(u % halves * 8, u // halves * along) for u in range(count)]

    @T.macro
    def bring(self, local, shared, lane, warp, ki, rk, is_b=False):
        """The rows of A, or columns of B, of the warp with this number among them."""
        tiles, rows = (self.warp_rows, self.micro_size_x)
        dtype, across = self.a_dtype, self.a_transposed
        if is_b:
            tiles, rows = self.warp_cols, self.micro_size_y
            dtype, across = self.b_dtype, not self.b_transposed
        units = self.units(is_b)
        size, down, right = len(units) * self.per, [m for m, _ in units], [k for _, k in units]
        k0 = rk * self.chunk + ki * self.micro_size_k
        for i in T.unroll(tiles):
            m0 = warp * (tiles * rows) + i * rows
            if self.ldmatrix_may(dtype, across) and across:
                T.ldmatrix(shared[k0, m0], local, i * size, right, down, True)
            elif self.ldmatrix_may(dtype, across):
                T.ldmatrix(shared[m0, k0], local, i * size, down, right)
            else:
                for u, (m1, k1) in enumerate(units):
                    for e in T.unroll(self.per):
                        m = m0 + m1 + lane // 4
                        k = k0 + k1 + lane % 4 * self.per + e
                        if across:
                            local[i * size + u * self.per + e] = shared[k, m]
                        else:
                            local[i * size + u * self.per + e] = shared[m, k]

    @T.macro
    def mma(self, A_local, B_local, C_local, k_inner=0):  # noqa: N803
        """C += A B, of what the warp holds: one step along k, whatever `k_inner` is."""
        for i in T.unroll(self.warp_rows):
            for j in T.unroll(self.warp_cols):
                self.mma_atom(A_local, B_local, C_local, i, j)

    @T.macro
    def mma_atom(self, A_local, B_local, C_local, inst_m_idx, inst_n_idx, k_inner=0):  # noqa: N803
        """What `mma` does at (`inst_m_idx`, `inst_n_idx`) of `mma_num_inst_m` x `mma_num_inst_n`
        places."""
        halves = self.micro_size_y // 8
        for half in T.unroll(halves):
            T.ptx_mma(
                self.accum_dtype,
                self.shape,
                "row",
                "col",
                self.a_dtype,
                self.b_dtype,
                self.accum_dtype,
                A_local,
                inst_m_idx * self.local_size_a,
                B_local,
                inst_n_idx * self.local_size_b + half * (self.local_size_b // halves),
                C_local,
                (inst_m_idx * self.warp_cols + inst_n_idx) * self.local_size_out
                + half * (self.local_size_out // halves),
            )

    @T.macro
    def store_at(self, lane, e):
        """Row and column of a lane's element `e` of C, in micro_size_x x micro_size_y elements."""
        rows = self.micro_size_x // 8
        return lane // 4 + 8 * (e // 2 % rows), e // (2 * rows) * 8 + lane % 4 * 2 + e % 2
