"""Larger extents that a kernel's product tiles may have for the threads and the matrix instructions
that a target has (`pad_tiles` gives them to the tiles)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilec.ir import ops
from tilec.ir.clusters import threads_of
from tilec.ir.core import Func, Region, Value, walk
from tilec.ir.instr import MatrixInstruction, find_instruction, instructions_of
from tilec.ir.layout import Layout
from tilec.passes.demote_fragments import demoted
from tilec.passes.select_gemm import THREADS, Selection, missed, steps_through
from tilec.passes.utils.distribution import fewest_registers
from tilec.passes.utils.registers import widest_wgmma
from tilec.passes.utils.tile_ends import ATOM, SharedTiles, rounded, shared_by, up
from tilec.target import Target

MOST_PADDED = 2  # times as large as itself may a product get, so that it has an instruction, and
# as one of `ATOM` rows: fewer are multiplied sooner so, too
FEW_REGISTERS = 64  # an uneven fragment may take so many
WORTH = 1.25  # times as fast has a larger product to be, whose tiles take longer to come


def of_warps(o: ops.Gemm, target: Target) -> list[MatrixInstruction]:
    """The instructions of several warps that know a product's dtypes."""
    found = instructions_of(o.a.dtype, o.b.dtype, o.c.dtype)
    return [r for r in found if r.warps > 1 and target.has(r.feature)]


def deeper(func: Func, target: Target) -> dict[ops.Gemm, int]:
    """Products that the instruction of several warps could do with a larger K, or where there is
    none any of a warp, and that K."""
    found: dict[ops.Gemm, int] = {}
    tiles = SharedTiles(func)
    for o in func.body.every(ops.Gemm):
        if o.metadata is not None:
            continue
        rows = of_warps(o, target)
        m, n, k = o.shape
        if not rows:
            known = instructions_of(o.a.dtype, o.b.dtype, o.c.dtype)
            rows = [r for r in known if steps_through(r, m, n) and target.has(r.feature)]
            if any(k % r.k == 0 for r in rows):
                continue
            rows.sort(key=lambda r: up(k, r.k))
        if not rows or k < rows[0].k or k % rows[0].k == 0 or (m % rows[0].m and n % rows[0].m):
            continue
        if all(map(tiles.may_grow, (o.a, o.b), o.summed)):
            found[o] = up(k, rows[0].k)
    return found


def fragments_of(func: Func) -> list[Value]:
    """Those that may get larger: what will be in shared memory need not, but for what products and
    reductions have to fit."""
    found = [o.result for o in func.body.every(ops.Alloc) if o.type.space == "fragment"]
    if not found:
        return []
    fit = {x.buffer for o in func.body.every(ops.Gemm) for x in o.inputs}
    fit |= {o.dest.buffer for o in func.body.every(ops.Reduce)}
    elsewhere = demoted(func).keys() - fit
    return [v for v in found if v not in elsewhere]


def larger_extents(func: Func, target: Target, deep: dict[ops.Gemm, int]) -> dict[int, int]:
    """What extents of fragments, and of products' K, become; nothing where all is well, or where
    one cannot be padded. `deep`: what those of `deeper` become."""
    faster = _Faster(func, target).found(deep)
    pads = _pads(func, target, deep, faster) if faster else {}
    return pads or _pads(func, target, deep, {})


class _Faster:
    """Products of a few more rows and columns that are done sooner: all warps have work, or a group
    of warps does it."""

    def __init__(self, func: Func, target: Target) -> None:
        self.func, self.target, self.threads = func, target, threads_of(func)
        self.warps = max(1, self.threads // target.warp_size)

    def found(self, deep: dict[ops.Gemm, int]) -> dict[ops.Gemm, tuple[int, int]]:
        """The rows and columns that they get."""
        found: dict[ops.Gemm, tuple[int, int]] = {}
        for o in self.func.body.every(ops.Gemm):
            if o in deep or o.metadata is not None or self._steps(o):
                continue
            if any(x.type.space != "shared" for x in o.inputs):
                continue
            now = self._clocks(o)
            sizes = [s for s in {*self._tiles(o)} if prod(s) <= MOST_PADDED * prod(o.shape[:2])]
            there = {s: c for s in sizes if (c := self._clocks(_grown(o, *s)))}
            best = min(there, key=lambda s: (there[s], s), default=o.shape[:2])
            if there and there[best] * WORTH <= now:
                found[o] = best
        return found

    def _steps(self, o: ops.Gemm) -> bool:
        """Whether the instruction of several warps does it as it is, whose number a plan may say;
        without such, whether one of a warp has work for all."""
        m, n, _ = o.shape
        rows = of_warps(o, self.target)
        if any(steps_through(r, m, n) for r in rows):
            return True
        known = instructions_of(o.a.dtype, o.b.dtype, o.c.dtype)
        split = (r for r in known if r.warps == 1 and self.target.has(r.feature))
        return not rows and any(m * n % (self.warps * r.m * r.n) == 0 for r in split)

    def _tiles(self, o: ops.Gemm) -> Iterator[tuple[int, int]]:
        """Rows and columns that instructions step through, with a part for every warp."""
        m, n, _ = o.shape
        yield shared_by(m, n, m == n, self.warps)
        for r in of_warps(o, self.target)[:1]:
            groups = self.warps // r.warps
            for i in (i for i in range(1, groups + 1) if groups % i == 0):
                units = r.m * i, ATOM * (groups // i)
                for along in (units, units[::-1]):  # of the product, of the swapped one
                    rows, columns = map(up, (m, n), along)
                    yield (max(rows, columns),) * 2 if m == n else (rows, columns)

    def _clocks(self, o: ops.Gemm) -> float:
        """Of a product, in proportion; 0 where threads do it, or operands go elsewhere first."""
        widest = widest_wgmma(self.threads, False, self.target)
        chosen = Selection(self.func, self.target).of(o, self.threads, widest)
        if not isinstance(chosen, ops.Gemm) or chosen.instr.startswith(THREADS):
            return 0.0
        row = find_instruction(chosen.instr)
        rate = self.target.speeds.product_rate(row.feature, row.a_dtype.bits)
        return prod(o.shape[:2]) * self.warps / prod(chosen.warps) / rate


def _grown(o: ops.Gemm, m: int, n: int) -> ops.Gemm:
    """The product of that many rows and columns."""

    def grown(x: Region, dim: int, extent: int) -> Region:
        v, more = x.buffer, extent - x.extents[dim]

        def shape(s: Sequence[int]) -> tuple[int, ...]:
            return tuple(e + more if d - len(s) == dim else e for d, e in enumerate(s))

        held = Value(replace(v.buffer, shape=shape(v.buffer.static_shape)), v.name)
        return replace(x, buffer=held, extents=shape(x.extents))

    a, b = o.summed
    c = Value(replace(o.c.buffer, shape=(m, n)), o.c.name)
    return replace(o, a=grown(o.a, -3 - a, m), b=grown(o.b, -3 - b, n), c=c)


def _have_room(func: Func, pads: dict[int, int]) -> bool:
    """Whether fragments that are padded take few registers then."""
    shapes = (v.buffer.static_shape for v in fragments_of(func))
    padded = ([pads.get(e, e) for e in s] for s in shapes if any(pads.get(e, e) != e for e in s))
    return all(prod(s) <= FEW_REGISTERS * threads_of(func) for s in padded)


def _pads(
    func: Func,
    target: Target,
    deep: dict[ops.Gemm, int],
    faster: dict[ops.Gemm, tuple[int, int]],
) -> dict[int, int]:
    warps = max(1, threads_of(func) // target.warp_size)
    pads = {o.shape[2]: k for o, k in deep.items()}
    for v in fragments_of(func):
        shape = v.buffer.static_shape
        held = fewest_registers(shape, target.warp_size, warps, 4).size("reg")
        if held > FEW_REGISTERS and held > 2 * prod(shape) // (warps * target.warp_size):
            pads.update((e, rounded(e)) for e in shape)
    for o, instrs in missed(func, target).items():
        if o in deep:
            continue
        m, n, _ = o.shape
        units = {u for r in instrs for u in ((r.m, r.n), (r.n, r.m))}  # of the swapped one, too
        tiles = [shared_by(up(m, i), up(n, j), m == n, warps) for i, j in sorted(units)]
        rows, columns = min(tiles, key=prod)
        larger = {m: rows, n: columns}
        if rows * columns <= MOST_PADDED * m * n or (
            rows * columns <= MOST_PADDED * max(m, ATOM) * max(n, ATOM) and _have_room(func, larger)
        ):
            pads |= larger
    for o, sides in faster.items():
        pads.update(zip(o.shape, sides))
    pads = {e: p for e, p in pads.items() if e != p}
    if not pads:
        return {}
    gemms = [o for o in func.body.every(ops.Gemm)]
    for o in gemms:
        m, n, k = o.shape
        if m in pads or n in pads:
            pads[m], pads[n] = shared_by(pads.get(m, m), pads.get(n, n), m == n, warps)
    pads = {e: p for e, p in pads.items() if e != p}
    for o in gemms:
        spaces = [x.type.space for x in (o.a, o.b)]
        if "global" in spaces or 1 in o.shape[:2] or (o.shape[2] in pads and "fragment" in spaces):
            return {}
        parts = [x for x in (o.a, o.b) if x.type.space == "fragment" and not x.is_whole]
        if any(e in pads for x in parts for e in x.extents):
            return {}
    padded = {v for v in fragments_of(func) if set(pads) & set(v.buffer.static_shape)}
    operands = {x.buffer for o in gemms for x in o.inputs}
    for x in walk(func.body):
        if isinstance(x, ops.Print) and x.buffer in padded:
            return {}
        if isinstance(x, ops.AnnotateLayout) and isinstance(x.layout, Layout):
            if x.dest in padded | operands:
                return {}
    return pads
