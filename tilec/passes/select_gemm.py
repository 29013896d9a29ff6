"""select_gemm: the instruction of every tile product and how the warps share its result.

Before: `gemm` ops carry the user's wishes. After: each has a `row` (the name of a hardware row)
and `warps` (how many along M and along N); the function knows its number of threads. A policy is a
preference: where it does not divide the tile the nearest partition that does is taken; a tile that
no matrix instruction divides gets the SIMT row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.analysis import Facts
from tilec.ir.core import Func, Op, Value, rewrite, walk
from tilec.ir.errors import CompileError
from tilec.ir.layout import Layout
from tilec.ir.ops import AnnotateLayout, Gemm
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32
from tilec.passes.gemm_layouts import operand_shared_layout
from tilec.passes.operands import Operand, operand, wgmma_reads
from tilec.passes.registers import widest_wgmma
from tilec.target import Target

DEFAULT_THREADS = 128


def select_gemm(func: Func, target: Target) -> Func:
    """See the module's opening. Raises CompileError for a number of threads the target cannot
    run."""
    threads = func.attrs.get("threads") or DEFAULT_THREADS
    if threads % target.warp_size or threads > target.max_threads:
        unit = target.warp_size
        fits = max(unit, min(target.max_threads, threads) // unit * unit)
        raise CompileError(
            f"threads={threads} is not a multiple of {unit} up to {target.max_threads}, which "
            f"{target} needs",
            func.loc,
            f"write threads={fits}",
        )
    func = func.with_attrs(threads=threads)
    if not any(isinstance(o, Gemm) for o in walk(func.body)):
        return func
    warps = threads // target.warp_size
    teams = int(func.attrs.get("teams", 1))
    widest = widest_wgmma(threads * teams, bool(func.attrs.get("specialise")), target)
    facts = Facts(func)
    annotated = {
        o.dest: o.layout
        for o in walk(func.body)
        if isinstance(o, AnnotateLayout) and isinstance(o.layout, Layout)
    }

    def visit(o: Op) -> Op | None:
        if not isinstance(o, Gemm):
            return None
        sides = (operand(o, "a", facts), operand(o, "b", facts))
        for chosen in (
            _wgmma(o, target, warps, sides, annotated, widest),
            _mma(o, target, warps),
            _mfma(o, target, warps),
        ):
            if chosen:
                return replace(o, row=chosen[0], warps=chosen[1])
        return replace(o, row=f"simt.fma.{o.c.dtype}", warps=(warps, 1))

    return func.with_body(rewrite(func.body, visit))


def _half_inputs(o: Gemm) -> bool:
    a, b = o.a.dtype, o.b.dtype
    return a == b and a in (FLOAT16, BFLOAT16) and o.c.dtype == FLOAT32


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


def _mma(o: Gemm, target: Target, warps: int) -> tuple[str, tuple[int, int]] | None:
    m, n, k = o.shape
    if not target.has("mma") or not _half_inputs(o) or k % 16:
        return None
    found = partitions(warps, m, n, 16, 8)
    if not found:
        return None
    return f"mma.m16n8k16.{o.a.dtype}", by_policy(found, o.policy, m, n)


def _mfma(o: Gemm, target: Target, warps: int) -> tuple[str, tuple[int, int]] | None:
    m, n, k = o.shape
    if not target.has("mfma") or not _half_inputs(o):
        return None
    for size, depth in ((32, 8), (16, 16)):
        found = partitions(warps, m, n, size, size)
        found = [p for p in found if p[0] * p[1] == warps] or (found if size == 16 else [])
        if k % depth == 0 and found:
            return f"mfma.{size}x{size}x{depth}.{o.a.dtype}", by_policy(found, o.policy, m, n)
    return None


def _wgmma(
    o: Gemm,
    target: Target,
    warps: int,
    sides: tuple[Operand, Operand],
    annotated: Mapping[Value, Layout],
    widest: int,
) -> tuple[str, tuple[int, int]] | None:
    """Warpgroups share C; rows first, because a wide instruction reads less shared memory per
    flop."""
    m, n, k = o.shape
    shared = o.a.buffer.space == "shared" and o.b.buffer.space == "shared"
    if not target.has("wgmma") or not _half_inputs(o) or not shared or warps % 4 or k % 16:
        return None
    groups = warps // 4
    layouts = []
    for x in sides:
        t = x.buffer.buffer
        assumed = annotated.get(x.buffer)
        layouts.append(assumed or operand_shared_layout(t.static_shape, t.dtype.bits, "wgmma"))
    found = [
        (gm, gn)
        for gm, gn in partitions(groups, m, n, 64, 8)
        if gm * gn == groups
        and n // gn <= widest
        and m // gm * (n // gn) // 128 <= 208
        and wgmma_reads(sides[0], layouts[0], m // gm)
        and wgmma_reads(sides[1], layouts[1], n // gn)
    ]
    if not found:
        return None
    if o.policy == "full_col":
        gm, gn = max(found, key=lambda p: p[1])
    else:
        gm, gn = max(found, key=lambda p: p[0])
    return f"wgmma.m64n{n // gn}k16.{o.a.dtype}", (4 * gm, gn)
