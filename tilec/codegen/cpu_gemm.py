"""Matrix products on the CPU: register-blocked micro-kernels, one function for each shape of tile.

The accumulator tile is cut into blocks of `rows` x `vectors` vectors that stay in registers over
the whole of k:

            B row k:    [ vector ][ vector ]          loaded once per k
    A column k:  a0 *   [  acc   ][  acc   ]
                 a1 *   [  acc   ][  acc   ]          a broadcast and a multiply-add each
                 …

Each step of k reads `rows` numbers of A and `vectors` vectors of B for rows * vectors
multiply-adds; the block is chosen so that the multiplier, not the loads, is the limit
(`choose_block`). Every element is summed in the order of k. Rows of B and C are padded to whole
vectors, so the last block of a row may compute lanes that nobody reads. Method: K. Goto and R. van
de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilec.codegen.cpu_machine import CpuFeatures
from tilec.codegen.lanes import counted, intrinsic, register_type, splat
from tilec.ir.llvm import Function, Val, constant, elem_of, int_val, shaped
from tilec.ir.ops import Gemm
from tilec.ir.types import DType

_LATENCY = 4  # cycles of a multiply-add; two may begin in each cycle, and two loads
_UNROLL = 4  # steps of k in one iteration


@dataclass(frozen=True, slots=True)
class Shape:
    """A tile product as its micro-kernel sees it. Strides are in elements: from row to row and step
    to step of k in A, from row to row in B and C.
    """

    m: int
    n: int
    k: int
    dtype: DType
    a_row: int
    a_step: int
    b_row: int
    c_row: int
    clear: bool


def choose_block(m: int, n: int, lanes: int, machine: CpuFeatures) -> tuple[int, int]:
    """(rows, vectors) of the register block with the least cycles for the whole tile."""
    vectors_of_tile = -(-n // lanes)
    best, found = float("inf"), (1, 1)
    for vectors in range(1, min(vectors_of_tile, 4) + 1):
        for rows in range(1, min(m, 16) + 1):
            # Two registers are left for A's broadcast and one product on machines without a fused
            # form.
            if rows * vectors + vectors + 2 > machine.registers:
                break
            cost = sum(
                max(r * v / 2, (r + v) / 2, _LATENCY) * r_count * v_count
                for r, r_count in _pieces(m, rows)
                for v, v_count in _pieces(vectors_of_tile, vectors)
            )
            if cost < best or (cost == best and rows * vectors > found[0] * found[1]):
                best, found = cost, (rows, vectors)
    return found


def _pieces(total: int, size: int) -> list[tuple[int, int]]:
    """[(size, how often)] of a row of pieces, the last of which may be shorter."""
    return [(s, count) for s, count in ((size, total // size), (total % size, 1)) if s and count]


@dataclass
class MicroKernels:
    """The functions made so far, by what they compute."""

    machine: CpuFeatures
    functions: dict[Shape, Function] = field(default_factory=dict)

    def call(self, fn: Function, o: Gemm, pointers: Sequence[Val], strides: Sequence[int]) -> None:
        """Append a call for the canonical `o` (see `lower_tiles`) on the first elements of A, B and
        C. `strides`: the last two of each of them.
        """
        m, n, k = o.shape
        a_row, a_step = strides[1::-1] if o.transpose_a else strides[:2]
        shape = Shape(m, n, k, o.c.dtype, a_row, a_step, strides[2], strides[4], o.clear)
        if shape not in self.functions:
            self.functions[shape] = self._make(shape, f"{fn.name}_gemm{len(self.functions)}")
        fn.act(
            "call",
            tuple(pointers),
            f"call void @{self.functions[shape].name}({', '.join(map(str, pointers))})",
        )

    def _make(self, s: Shape, name: str) -> Function:
        params = [("ptr", "noalias nocapture", f"%{x}") for x in "abc"]
        fn = Function(name, params, linkage="internal", attrs="noinline nounwind #0")
        lanes = min(self.machine.vector_bytes // s.dtype.bytes, 1 << (s.n - 1).bit_length())
        rows, vectors = choose_block(s.m, s.n, lanes, self.machine)
        tile = _Tile(fn, s, lanes, self.machine.fma)
        column, left = 0, -(-s.n // lanes)
        for v, v_count in _pieces(left, vectors):
            first = column

            def columns(j: Val, v: int = v, first: int = first) -> None:
                row = 0
                for r, r_count in _pieces(s.m, rows):
                    base = row

                    def block(i: Val, r: int = r, base: int = base) -> None:
                        tile.block(fn.add(i, _i64(base)), fn.add(j, _i64(first)), r, v)

                    counted(fn, r_count * r, r, block, "i64")
                    row += r * r_count

            counted(fn, v_count * v * lanes, v * lanes, columns, "i64")
            column += v * v_count * lanes
        fn.ret()
        return fn


@dataclass(frozen=True)
class _Tile:
    """Emits blocks of one product."""

    fn: Function
    s: Shape
    lanes: int
    has_fma: bool

    def block(self, i: Val, j: Val, rows: int, vectors: int) -> None:
        """The block whose first element is (i, j)."""
        fn, s = self.fn, self.s
        type = shaped(register_type(s.dtype), self.lanes)
        a = self._at(Val("ptr", "%a"), fn.mul(i, _i64(s.a_row)))
        b = self._at(Val("ptr", "%b"), j)
        c = self._at(Val("ptr", "%c"), fn.add(fn.mul(i, _i64(s.c_row)), j))
        places = [
            self._at(c, _i64(r * s.c_row + v * self.lanes))
            for r in range(rows)
            for v in range(vectors)
        ]
        start = [constant(type, 0) if s.clear else fn.load(type, p, s.dtype.bytes) for p in places]
        unroll = next(u for u in (_UNROLL, 2, 1) if s.k % u == 0)
        sums = self._steps(a, b, start, rows, vectors, unroll)
        for p, v in zip(places, sums):
            fn.store(v, p, s.dtype.bytes)

    def _steps(
        self, a: Val, b: Val, start: list[Val], rows: int, vectors: int, unroll: int
    ) -> list[Val]:
        """The loop over k; `unroll` steps of it in each iteration."""
        fn, s = self.fn, self.s
        if s.k == unroll:
            return self._body(a, b, start, rows, vectors, unroll)
        phis = fn.loop_header("k", [_i64(0), a, b, *start])
        head, done = fn.block.label, fn.label("endk")
        k, at, bt, *held = (p.result for p in phis)
        sums = self._body(at, bt, held, rows, vectors, unroll)
        after = fn.binary("add", k, _i64(unroll), "nuw nsw")
        a_after = self._at(at, _i64(unroll * s.a_step))
        b_after = self._at(bt, _i64(unroll * s.b_row))
        fn.cbr(fn.icmp("slt", after, _i64(s.k)), head, done, done, loop="keep")
        for phi, following in zip(phis, [after, a_after, b_after, *sums]):
            phi.incoming.append((following, fn.block.label))
        fn.start(done)
        return sums

    def _body(
        self, a: Val, b: Val, sums: list[Val], rows: int, vectors: int, unroll: int
    ) -> list[Val]:
        fn, s = self.fn, self.s
        type, align = shaped(register_type(s.dtype), self.lanes), s.dtype.bytes
        for u in range(unroll):
            right = [
                fn.load(type, self._at(b, _i64(u * s.b_row + v * self.lanes)), align)
                for v in range(vectors)
            ]
            for r in range(rows):
                one = fn.load(elem_of(type), self._at(a, _i64(u * s.a_step + r * s.a_row)), align)
                left = splat(fn, one, self.lanes)
                for v in range(vectors):
                    n = r * vectors + v
                    sums[n] = self._multiply_add(left, right[v], sums[n])
        return sums

    def _multiply_add(self, a: Val, b: Val, c: Val) -> Val:
        if self.s.dtype.is_int:
            return self.fn.add(c, self.fn.mul(a, b))
        return intrinsic(self.fn, "fma" if self.has_fma else "fmuladd", [a, b, c])

    def _at(self, pointer: Val, elements: Val) -> Val:
        return self.fn.gep(register_type(self.s.dtype), pointer, elements)


def _i64(n: int) -> Val:
    return int_val(n, "i64")
