"""`MatrixCoreIntrinEmitter`: `mfma` for kernels that say which thread holds what.

What lanes hold is in the AMD Instinct MI300 ISA, "Matrix Arithmetic Instructions": of A lane l of
64 has a row, l % 16 (of 32x32 elements: l % 32), and neighbours along k. A and B change places
here, so that of C a lane has a row, too, and four neighbouring columns each time: they are stored
together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from tilec import language as T
from tilec.builtins.annotations import dtype_of
from tilec.intrinsics.warps import Warps
from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError
from tilec.ir.instr import MfmaInstruction, instructions_of

# mypy: disable-error-code="no-untyped-def"

_DEFAULT_K = {8: 32, 16: 16, 32: 4, 64: 4}  # by the bits of an element
_ACCUMULATE = {"int8": "int32", "float64": "float64"}  # others: float32
_OPERANDS = ("float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3", "float8_e5m2")


@dataclass(eq=False)
class MatrixCoreIntrinEmitter(Warps):
    """Loads, products and stores of a block of `block_row_warps` x `block_col_warps` waves of 64
    lanes, each of which computes `warp_row_tiles` x `warp_col_tiles` elements, `chunk` along k at a
    time, by `v_mfma` of `mfma_shape`: (16, 16, k) elements, or (32, 32, k).

    A is (rows, k) in shared memory, or (k, rows) if `a_transposed`; B is (k, columns), or (columns,
    k) if `b_transposed`. dtypes: float16, bfloat16, float32 and float8 (e4m3 and e5m2 may be mixed)
    with sums in float32, int8 with int32, float64 with float64. Without `mfma_shape` it is 16x16
    with k = 16 for 16 bits, 32 for 8 and 4 for more. In local memory a lane has `local_size_a`,
    `local_size_b` and `local_size_out` elements of each `micro_size_x` rows and `micro_size_y`
    columns of a step along k, `micro_size_k`: `warp_rows` and `warp_cols` times, and of A and B
    `k_pack` steps at once, side by side (`ki` counts loads). Threads are counted along all
    dimensions of the block, unless `thread_var` gives their number; `reduce_k` waves, `rk` of the
    loads, may share the sums along k. `target` says nothing here: a kernel is compiled for one.
    Raises CompileError for dtypes and shapes without an instruction, and for sizes that are no
    multiples; compiling does so for targets that lack the instruction (all but AMD's CDNA).
    """

    WARP_SIZE = 64

    accum_dtype: object = "float32"
    _: KW_ONLY
    k_pack: int = 1  # None: likewise
    b_preshuffle: bool | None = False
    target: object = None
    mfma_shape: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.k_pack = 1 if self.k_pack is None else self.k_pack
        for name, usual in (("num_elems_per_byte", 1), ("b_preshuffle", False)):
            if (given := getattr(self, name) or False) != usual:
                hint = "leave it out: elements have a byte or more, and lie in rows"
                raise CompileError(f"{name}={given}", caller_loc(), hint)
        instr = self._instruction(self.mfma_shape)
        self.mfma_suffix = instr.word
        self.M_DIM, self.N_DIM, self.k_dim = instr.m, instr.n, instr.k
        self.micro_size_x, self.micro_size_y, self.micro_size_k = instr.m, instr.n, instr.k
        self.check_sizes(
            k_pack=1,
            warp_row_tiles=self.M_DIM,
            warp_col_tiles=self.N_DIM,
            chunk=self.k_dim * max(self.k_pack, 1),
        )
        self.warp_rows = self.warp_row_tiles // self.M_DIM
        self.warp_cols = self.warp_col_tiles // self.N_DIM
        self.local_size_a, self.local_size_b, self.local_size_out = instr.packs
        self.local_size_c = self.local_size_out
        self.neighbours = 1 if dtype_of(self.accum_dtype).bits == 64 else 4  # columns of C

    def _instruction(self, shape: tuple[int, int, int] | None) -> MfmaInstruction:
        dtypes = [dtype_of(d) for d in (self.b_dtype, self.a_dtype, self.accum_dtype)]
        b, a, c = dtypes
        rows = [i for i in instructions_of(b, a, c) if isinstance(i, MfmaInstruction)]
        if not rows:
            known = "; ".join(
                f"{name} with {_ACCUMULATE.get(name, 'float32')}" for name in _OPERANDS
            )
            message = f"no mfma of {a.name}, {b.name}, {c.name} (A, B, sums)"
            raise CompileError(message, caller_loc(), f"there are: {known}")
        wanted = (16, 16, _DEFAULT_K[a.bits]) if shape is None else tuple(shape)
        found = {(i.m, i.n, i.k): i for i in rows}
        if wanted not in found:
            sizes = ", ".join(map(str, found))
            message = f"no mfma of {a.name} of the shape {wanted}"
            raise CompileError(message, caller_loc(), f"there are: {sizes}")
        return found[wanted]

    # --- what lanes hold ---

    def get_ldmatrix_index_map(self, is_b: bool = False) -> tuple[Callable[..., Any], ...]:
        """Two functions of a load of A or B: (lane, number among its elements) of a row and column
        in shared memory, and back."""
        size, along = self.M_DIM, self.k_pack * self.local_size_a
        runs_along_k = self.b_transposed if is_b else not self.a_transposed

        def place(i, j):
            of, k = (i, j) if runs_along_k else (j, i)
            return of + size * (k // along), k % along

        def element(thread_id, local_id):
            of, k = thread_id % size, thread_id // size * along + local_id
            return (of, k) if runs_along_k else (k, of)

        return place, element

    def get_store_index_map(self, inverse: bool = False) -> Callable[..., Any]:
        """The function that gives row and column of C for a lane and the number among its elements;
        `inverse`: lane and number for a row and column."""
        size, run = self.M_DIM, self.neighbours
        lanes = self.WARP_SIZE // size

        def element(thread_id, local_id):
            column = local_id // run * (run * lanes) + thread_id // size * run + local_id % run
            return thread_id % size, column

        def place(i, j):
            return i + size * (j // run % lanes), j // (run * lanes) * run + j % run

        return place if inverse else element

    @T.macro
    def store_at(self, lane, e):
        """Row and column of a lane's element `e` of C, in M_DIM x N_DIM elements."""
        element = self.get_store_index_map()
        return element(lane, e)

    # --- what a wave does ---

    @T.macro
    def bring(self, local, shared, lane, warp, ki, rk, is_b=False):
        """The rows of A, or columns of B, of the wave with this number among them."""
        first = warp * (self.warp_col_tiles if is_b else self.warp_row_tiles)
        across = not self.b_transposed if is_b else self.a_transposed
        count = self.k_pack * self.local_size_a
        _, element = self.get_ldmatrix_index_map(is_b)
        k0 = rk * self.chunk + ki * (self.k_pack * self.micro_size_k)
        for i in T.unroll(self.warp_cols if is_b else self.warp_rows):
            at = first + i * self.M_DIM
            begin = (k0, at) if across else (at, k0)
            for e in T.vectorized(count):
                row, column = element(lane, e)
                local[i * count + e] = shared[begin[0] + row, begin[1] + column]

    @T.macro
    def mfma(self, A_local, B_local, C_local, k_inner=0):  # noqa: N803
        """C += A B, of what the wave holds: what one load brings, whatever `k_inner` is."""
        for part in T.unroll(self.k_pack):
            for i in T.unroll(self.warp_rows):
                for j in T.unroll(self.warp_cols):
                    T.tvm_mfma(
                        self.mfma_suffix,
                        "row",
                        "row",
                        self.b_dtype,
                        self.a_dtype,
                        self.accum_dtype,
                        B_local,
                        j * self.k_pack + part,
                        A_local,
                        i * self.k_pack + part,
                        C_local,
                        i * self.warp_cols + j,
                    )
