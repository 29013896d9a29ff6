"""select_gemm: the instruction of every tile product and how the warps share its result.

Before: `gemm` ops carry the user's wishes. After: each has a `instr` (the name of a hardware row)
and `warps` (how many along M and along N); the function knows its number of threads. A policy is a
preference: where it does not divide the tile the nearest partition that does is taken.

The lowering paths, best first: an instruction that reads the operands where they lie; the same for
the product with operands swapped C^T = B^T @ A^T, where the rows of C do not divide into those of
the instruction (wgmma has 64 rows, but any multiple of 8 columns); the same with one operand
brought to registers, where it cannot read how that one is stored; one of a warp, for which they
come to registers (with a conversion, where the target lacks the dtype but has one that holds it
exactly: float8 as float16, a float16 sum as float32); multiply-adds in every thread, for a tile or
dtypes that no matrix instruction takes. Products with a compressed A have rows of their own, the
first and the fourth of these paths; `expand_sparse` has made dense ones of those that none
suits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilec.ir.analysis import facts_of
from tilec.ir.clusters import all_threads_of, residents_of, threads_of
from tilec.ir.core import Func, Op, altered
from tilec.ir.errors import CompileError, InternalError
from tilec.ir.instr import MatrixInstruction, instructions_of, sparse_instructions_of
from tilec.ir.layout import Layout
from tilec.ir.loc import Loc
from tilec.ir.ops import AnnotateLayout, Gemm
from tilec.ir.sparse import group_size
from tilec.ir.types import FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, TFLOAT32, DType
from tilec.passes.round_operands import roundable, takes_tf32
from tilec.passes.utils.gemm_layouts import SWIZZLES, operand_shared_layout, swizzle_of
from tilec.passes.utils.groups import warps_of
from tilec.passes.utils.operands import (
    WGMMA_K_BYTES,
    k_bytes,
    operand,
    through_registers,
    wgmma_reads,
)
from tilec.passes.utils.registers import widest_wgmma
from tilec.target import Target

Dtypes = tuple[DType, DType, DType]
"""Of A, B and C."""

MAX_PRODUCT_REGISTERS = 208  # of a thread for accumulators and a fragment A of one product
FLOAT8 = (FLOAT8_E4M3, FLOAT8_E5M2)
THREADS = "simt.fma."  # names of what threads multiply by


def check_threads(threads: int, target: Target, loc: Loc | None) -> None:
    """Raise CompileError, at the place that asks for them, unless a block of `target` can have
    that many threads."""
    if threads > target.max_threads:
        raise CompileError(
            f"threads={threads} is more than a block of {target} can have, {target.max_threads}",
            loc,
            f"write threads={target.max_threads}",
        )


def select_gemm(func: Func, target: Target) -> Func:
    """Raises CompileError for a number of threads the target cannot run."""
    threads = threads_of(func)
    check_threads(threads, target, func.grid.ops[-1].loc)
    func = func.with_attrs(threads=threads)
    if not func.body.has(Gemm):
        return func
    specialised, blocks = bool(func.attrs.get("specialise")), residents_of(func)
    widest = widest_wgmma(all_threads_of(func), specialised, target, blocks)
    selection = Selection(func, target)

    warps = warps_of(func, target)

    def visit(o: Gemm) -> Op | Sequence[Op]:
        chosen = selection.of(o, warps(o) * target.warp_size, widest)
        if not o.asynchronous or (isinstance(chosen, Gemm) and chosen.is_asynchronous):
            return chosen
        made = [chosen] if isinstance(chosen, Op) else chosen
        return [replace(x, asynchronous=False) if isinstance(x, Gemm) else x for x in made]

    return func.rewrite(Gemm, visit)


def missed(func: Func, target: Target) -> dict[Gemm, list[MatrixInstruction]]:
    """Products (TILE) that threads would do, whose rows or columns are all that keeps instructions
    of a warp from them: these instructions. None that one of a group of warps steps through, as it
    is or with operands swapped: how many threads there are, a plan may say."""
    threads = threads_of(func)
    found = dict[Gemm, list[MatrixInstruction]]()
    for o in func.body.every(Gemm):
        m, n, k = o.shape
        known = _of_its_dtypes(o, target)
        rows = [r for r in known if r.warps == 1 and k % r.k == 0]
        wide = [r for r in known if r.warps > 1]
        if any(steps_through(r, m, n) for r in wide):
            continue
        if o.metadata is None and rows and all(m % r.m or n % r.n for r in rows):
            chosen = Selection(func, target).of(o, threads, widest_wgmma(threads, False, target))
            if isinstance(chosen, Gemm) and chosen.instr.startswith(THREADS):
                found[o] = rows
    return found


def steps_through(row: MatrixInstruction, m: int, n: int) -> bool:
    """Whether an instruction steps through rows and columns, or through these with operands
    swapped."""
    return m % row.m == n % row.n == 0 or n % row.m == m % row.n == 0


def nearest_tile(o: Gemm, target: Target) -> tuple[int, ...] | None:
    """Of a product that threads do, the least M, N and K that a matrix instruction steps through;
    None where none knows its dtypes."""
    tiles = [
        tuple(-(-extent // unit) * unit for extent, unit in zip(o.shape, (r.m, r.n, r.k)))
        for r in _of_its_dtypes(o, target)
        if r.warps == 1
    ]
    return min(tiles, key=prod, default=None) if o.instr.startswith(THREADS) else None


def _of_its_dtypes(o: Gemm, target: Target) -> list[MatrixInstruction]:
    return [r for d in dtypes_of(o) for r in _instrs(*d, target)]


class Selection:
    """Chooses instructions for the products of `func` (TILE)."""

    def __init__(self, func: Func, target: Target) -> None:
        self._target, self._facts = target, facts_of(func)
        self._rounded = roundable(func)
        self._annotated = {
            o.dest: o.layout
            for o in func.body.every(AnnotateLayout)
            if isinstance(o.layout, Layout)
        }

    def of(self, o: Gemm, threads: int, widest: int) -> Op | Sequence[Op]:
        """The product with its instruction and partition for that many threads and a wgmma of
        `widest` columns at most; its parts and what they need, where operands are brought to
        registers for it."""
        warps = threads // self._target.warp_size
        if o.metadata is not None:
            return self._sparse(o, warps, widest)

        def wide(o: Gemm, dtypes: Dtypes | None = None) -> tuple[str, tuple[int, int]] | None:
            instrs = _instrs(*(dtypes or dtypes_of(o)[0]), self._target)
            return self._warpgroups(o, instrs, warps, widest)

        for a, b, c in dtypes_of(o):
            ways = ((o, (a, b, c)), (altered(o, operands_swapped=True), (b, a, c)))
            for swizzle, (seen, dtypes) in itertools.product(SWIZZLES, ways):
                seen = altered(seen, swizzle=swizzle)
                chosen = wide(seen.swap_operands(), dtypes)
                if chosen:
                    return altered(seen, instr=chosen[0], warps=chosen[1])
            instrs = _instrs(a, b, c, self._target)
            held = through_registers(o, instrs, threads, wide)
            if held is not None:
                return held
            chosen = _warps(o, instrs, warps)
            if chosen:
                return replace(o, instr=chosen[0], warps=chosen[1])
        return replace(o, instr=f"{THREADS}{o.c.dtype.short}", warps=(warps, 1))

    def _sparse(self, o: Gemm, warps: int, widest: int) -> Gemm:
        """The product with a compressed A with its row: for its dtypes in their order one that
        reads the operands where they lie, else one of a warp."""
        rows = sparse_instructions(o, self._target)
        for dtypes in dtypes_of(o):
            own = [r for r in rows if (r.a_dtype, r.b_dtype, r.c_dtype) == dtypes]
            chosen = self._warpgroups(o, own, warps, widest) or _warps(o, own, warps)
            if chosen is not None:
                return replace(o, instr=chosen[0], warps=chosen[1])
        raise InternalError(f"no row for a sparse gemm of {o.shape}", o.loc)

    def _warpgroups(
        self, o: Gemm, instrs: Sequence[MatrixInstruction], warps: int, widest: int
    ) -> tuple[str, tuple[int, int]] | None:
        """A row that several warps execute together, with B (and A, unless it is a fragment) read
        from shared memory. The groups share C; rows first, because a wide instruction reads less
        shared memory per flop."""
        m, n, k = o.shape
        by_n = {instr.n: instr for instr in instrs if instr.warps > 1 and k % instr.k == 0}
        if not by_n or o.b.type.space != "shared":
            return None
        first = next(iter(by_n.values()))
        if warps % first.warps or not self._as_stored(o, first):
            return None
        groups = warps // first.warps
        found = [
            (gm, gn)
            for gm, gn in partitions(groups, m, n, first.m, 8)
            if gm * gn == groups
            and n // gn in by_n
            and 2 * by_n[n // gn].registers[2] <= widest
            and _registers(o, by_n[n // gn], m // gm) <= MAX_PRODUCT_REGISTERS
            and (o.a.type.space == "fragment" or self._reads(o, "a", first, m // gm))
            and self._reads(o, "b", first, n // gn, k_bytes(first))
        ]
        if not found:
            return None
        along = 1 if o.policy == "full_col" else 0
        gm, gn = max(found, key=lambda p: p[along])
        return by_n[n // gn].name, (first.warps * gm, gn)

    def _reads(
        self, o: Gemm, which: str, instr: MatrixInstruction, share: int, depth: int = WGMMA_K_BYTES
    ) -> bool:
        """Whether the row reads an operand in the layout that the user, or else tilec, gives it."""
        x = operand(o, which, self._facts)
        shape, bits = x.region.type.static_shape, x.region.dtype.bits
        own = operand_shared_layout(shape, bits, instr.name, swizzle_of(o, which))
        layout = self._annotated.get(x.buffer) or own
        return wgmma_reads(x, layout, share, depth) is not None

    def _as_stored(self, o: Gemm, instr: MatrixInstruction) -> bool:
        """Whether A and B are where the row reads them and in its own dtypes, or will be: a shared
        tile that may be rounded where it lies (`round_operands`), a fragment that is rounded in
        registers."""
        for x, places, dtype in (
            (o.a, instr.a_places, instr.a_dtype),
            (o.b, instr.b_places, instr.b_dtype),
        ):
            t = x.type
            rounds = (t.dtype, dtype) == (FLOAT32, TFLOAT32)
            if t.space not in places or not (t.dtype == dtype or rounds):
                return False
            if rounds and t.space == "shared" and x.buffer not in self._rounded:
                return False
            if t.space == "fragment" and not x.is_whole:
                return False
        return True


def _instrs(a: DType, b: DType, c: DType, target: Target) -> list[MatrixInstruction]:
    return [instr for instr in instructions_of(a, b, c) if target.has(instr.feature)]


def sparse_instructions(o: Gemm, target: Target) -> list[MatrixInstruction]:
    """The rows for a product with a compressed A; nothing where none of one warp suits it."""
    m, n, k = o.shape
    rows = [
        instr
        for dtypes in dtypes_of(o)
        for instr in sparse_instructions_of(*dtypes)
        if target.has(instr.feature)
        and group_size(instr.a_dtype.bits) == group_size(o.a.dtype.bits)
    ]
    plain = any(r.warps == 1 and not (m % r.m or n % r.n or k % r.k) for r in rows)
    return rows if plain else []


def dtypes_of(o: Gemm) -> list[Dtypes]:
    """The dtypes (A, B, C) in which the product may be computed, the preferred ones first: its
    own; those to which its inputs convert exactly; a wider sum."""
    a, b, c = o.a.dtype, o.b.dtype, o.c.dtype
    inputs = [(a, b)]
    if takes_tf32(o):
        inputs = [(TFLOAT32, TFLOAT32), (a, b)]
    elif a in FLOAT8 and b in FLOAT8:
        inputs = [(a, b), (FLOAT16, FLOAT16)]
    if TFLOAT32 in (a, b):
        inputs.append((FLOAT32, FLOAT32))
    sums = [c, FLOAT32] if c == FLOAT16 else [c]
    return [(x, y, z) for z in sums for x, y in inputs]


def partitions(warps: int, m: int, n: int, atom_m: int, atom_n: int) -> list[tuple[int, int]]:
    """Every (along M, along N) split of `warps` whose shares are whole atoms; where there is none,
    splits of the largest number of warps that has one (the others repeat the work)."""
    for used in range(warps, 0, -1):
        if warps % used:
            continue
        found = [
            (wm, used // wm)
            for wm in range(1, used + 1)
            if used % wm == 0 and m % (wm * atom_m) == 0 and n % (used // wm * atom_n) == 0
        ]
        if found:
            return found
    return []


def by_policy(found: list[tuple[int, int]], policy: str, m: int, n: int) -> tuple[int, int]:
    """The partition nearest to the policy: most rows, most columns, or the squarest share."""
    if policy == "full_row":
        return max(found, key=lambda p: p[0])
    if policy == "full_col":
        return max(found, key=lambda p: p[1])
    return min(found, key=lambda p: (m // p[0] + n // p[1], -p[0]))


def _warps(
    o: Gemm, instrs: Sequence[MatrixInstruction], warps: int
) -> tuple[str, tuple[int, int]] | None:
    """A row that one warp executes, its operands in registers: the first one with work for every
    warp, else the one with work for most."""
    m, n, k = o.shape
    best: tuple[str, tuple[int, int]] | None = None
    used = 0
    for instr in instrs:
        if instr.warps > 1 or k % instr.k:
            continue
        found = partitions(warps, m, n, instr.m, instr.n)
        if found and found[0][0] * found[0][1] > used:
            used = found[0][0] * found[0][1]
            best = instr.name, by_policy(found, o.policy, m, n)
    return best


def _registers(o: Gemm, instr: MatrixInstruction, share: int) -> int:
    """Registers that a thread holds while the product of `share` rows runs."""
    blocks = share // instr.m
    held = blocks * instr.registers[2]
    if o.a.type.space == "fragment":
        held += blocks * (o.shape[2] // instr.k) * instr.registers[0]
    return held
