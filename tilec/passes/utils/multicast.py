"""Multicast: what several blocks of a cluster need is loaded once and given to all of them.

A box copy whose source does not depend on the block's place along a dimension of the cluster is the
same for the blocks along it, if the loops and conditions around it do not depend on it either. Each
of these blocks then loads one part of the tile and sends it to all, at the same place of their
shared memory. A part is whole boxes, or boxes with fewer rows whose pieces of the swizzle pattern
are whole: of 152 rows two blocks bring 80 each, eight of them both. Only clusters with powers of
two along every dimension take part: the numbers of two blocks that load for one another then differ
by an exclusive or, whichever block looks."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import Dims, cluster_of
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.layout import Layout, tma_box
from tilec.ir.layout.descriptors import BOX_ALIGN
from tilec.ir.uniformity import parted, varying

_ROWS = 8  # of a swizzle's pattern
_TWICE = 1 / 8  # of a tile that may be brought by two blocks


@dataclass(frozen=True)
class Share:
    """How the blocks along `dims` of a cluster share the loading of one tile.

    Along its dimension `along` each brings `extent` of the tile, `pitch` behind what the one before
    brings; `box` is what one TMA instruction brings; from one block's part to the next there are
    `step` elements of shared memory. `repeated`: elements of the tile that come once more."""

    dims: tuple[int, ...]
    along: int
    extent: int
    pitch: int
    box: tuple[int, ...]
    step: int
    repeated: int


def _differing(func: Func, dim: int) -> set[Value | Op]:
    """The values of a function that may differ from block to block along a dimension of the
    cluster, and the ops that may run, or how often, in some of these blocks only."""
    defs, cluster = func.body.defs, cluster_of(func)
    own, same = set[Value](), set[Value]()
    for o in walk(func.body):
        match o:
            case ops.BlockIndex(dim=d) | ops.ClusterIndex(dim=d):
                own.update(o.results if d == dim else ())
            case ops.Binary(kind="floordiv"):
                whole, by = defs.get(o.lhs), defs.get(o.rhs)
                if isinstance(whole, ops.BlockIndex) and isinstance(by, ops.Const):
                    if by.value == cluster[whole.dim]:
                        same.add(o.result)  # the cluster's own number
            case ops.Load() if o.source.space == "global":
                pass
            case _ if not o.pure and not o.region_fields:
                own.update(o.results)
    found = varying(func.body, own, allocs=False, same=same)
    return {*found, *(o for o, _ in parted(func.body, found))}


class Multicast:
    """Which tiles of a function are shared in its cluster, and how."""

    def __init__(self, func: Func) -> None:
        self.cluster: Dims = cluster_of(func)
        self.shares: dict[Value, Share] = {}  # by the tile's buffer
        if all(c & (c - 1) == 0 for c in self.cluster) and self.cluster != (1, 1, 1):
            differing = {d: _differing(func, d) for d, c in enumerate(self.cluster) if c > 1}
            shares: dict[Value, set[Share | None]] = {}
            for o in func.body.every(ops.Copy):
                if o.engine == "tma":
                    used = {o, *o.source.offsets}
                    dims = [d for d, differs in differing.items() if used.isdisjoint(differs)]
                    found = self._share(o, dims)
                    shares.setdefault(o.dest.buffer, set()).add(found)
            for v, ways in shares.items():
                (way, *others) = ways
                if way is not None and not others:  # all that fill a ring share the work alike
                    self.shares[v] = way

    @cached_property
    def strides(self) -> tuple[int, int, int]:
        """What one step along each dimension adds to a block's number."""
        return 1, self.cluster[0], self.cluster[0] * self.cluster[1]

    def _share(self, o: ops.Copy, dims: Sequence[int]) -> Share | None:
        """The sharing by as many blocks as the tile can be cut for."""
        layout = o.dest.type.laid_out
        some = [
            chosen
            for count in range(len(dims), 0, -1)
            for chosen in itertools.combinations(dims, count)
        ]
        some.sort(key=lambda chosen: -self._blocks(chosen))
        for chosen in some:
            found = cut(layout, o.dest.dtype.bits, self._blocks(chosen))
            if found is not None:
                return Share(chosen, *found)
        return None

    def _blocks(self, dims: Iterable[int]) -> int:
        return int(np.prod([self.cluster[d] for d in dims]))

    def links(self, buffers: Iterable[Value]) -> tuple[int, ...]:
        """The blocks that load for this one (0: itself) what fills these buffers, as what their
        numbers differ by."""
        found = {0}
        for v in buffers:
            share = self.shares.get(v)
            if share is not None:
                found |= set(self._members(share.dims))
        return tuple(sorted(found))

    def repeated(self, buffers: Iterable[Value]) -> int:
        """How many bytes more come for these buffers than they hold."""
        shares = ((v, self.shares.get(v)) for v in buffers)
        return sum(share.repeated * v.buffer.dtype.bits // 8 for v, share in shares if share)

    def _members(self, dims: Iterable[int]) -> list[int]:
        """Numbers of the blocks along `dims` from the cluster's first one."""
        ranges = [[i * self.strides[d] for i in range(self.cluster[d])] for d in dims]
        return [sum(chosen) for chosen in itertools.product(*ranges)]

    # --- values ---

    def number(self, b: Builder) -> Value:
        """This block's number in its cluster."""
        return _number(b, {d: self.strides[d] for d in range(3) if self.cluster[d] > 1})

    def part(self, b: Builder, share: Share) -> Value:
        """Which part of the tile this block loads."""
        below = itertools.accumulate((self.cluster[d] for d in share.dims), operator.mul, initial=1)
        return _number(b, dict(zip(share.dims, below)))

    def receivers(self, b: Builder, share: Share) -> Value:
        """A bit for each block that this one loads for."""
        group = sum(1 << member for member in self._members(share.dims))
        others = [d for d in range(3) if d not in share.dims and self.cluster[d] > 1]
        if not others:
            return b.const(group)
        return b.fold("shl", b.const(group), _number(b, {d: self.strides[d] for d in others}))


def _number(b: Builder, steps: Mapping[int, int]) -> Value:
    """A block's number, of which a dimension of the cluster counts so many for each step."""
    total = b.const(0)
    for d, step in steps.items():
        total = b.fold("add", total, b.fold("mul", b.value(ops.ClusterIndex, d), step))
    return total


def cut(
    layout: Layout, bits: int, parts: int
) -> tuple[int, int, int, tuple[int, ...], int, int] | None:
    """All of a `Share` but its blocks: how a tile is loaded in `parts` equal parts, each by the
    fewest boxes, none of it twice if that can be; None if it cannot be cut."""
    found = tma_box(layout, bits)
    assert found is not None
    box, swizzle = found
    for apart in (True, False):
        unit = 1 if apart else _ROWS
        best: tuple[int, tuple[int, int, int, tuple[int, ...], int, int]] | None = None
        for along, whole in enumerate(layout.shape):
            pitch = whole // parts // unit * unit
            extent = whole - (parts - 1) * pitch
            twice = parts * extent - whole
            if not pitch or twice > (0 if apart else _TWICE * whole):
                continue
            smaller = _smaller(box, along, extent, apart)
            if smaller is None:
                continue
            step = _step(layout, bits, swizzle, along, smaller, parts, (pitch, extent))
            part = (*layout.shape[:along], extent, *layout.shape[along + 1 :])
            count = int(np.prod([e // x for e, x in zip(part, smaller)]))
            repeated = twice * int(np.prod(layout.shape)) // whole
            if step is not None and (best is None or count < best[0]):
                best = count, (along, extent, pitch, smaller, step, repeated)
        if best:
            return best[1]
    return None


def _smaller(box: tuple[int, ...], along: int, extent: int, apart: bool) -> tuple[int, ...] | None:
    """The box, with fewer rows if a part of `extent` is smaller than it: then `along` must be its
    slowest dimension, so that its rows stay next to one another."""
    if extent % box[along] == 0:
        return box
    if along == len(box) - 1 or any(e > 1 for e in box[:along]):
        return None
    if box[along] % extent if apart else box[along] < extent:
        return None
    return (*box[:along], extent, *box[along + 1 :])


def _step(
    layout: Layout,
    bits: int,
    swizzle: int,
    along: int,
    box: tuple[int, ...],
    parts: int,
    rows: tuple[int, int],
) -> int | None:
    """The distance in shared memory between parts of so many `rows` (from one to the next, of
    each), if it is the same for all of their boxes and keeps the swizzle's pattern in place."""
    pitch, extent = rows
    corners = [slice(None, None, x) for x in box]
    each = []
    for part in range(parts):
        corners[along] = slice(part * pitch, part * pitch + extent, box[along])
        each.append(layout.offsets()[tuple(corners)])
    gaps = np.diff(np.stack(each), axis=0)
    step = int(gaps.flat[0])
    period = 8 * swizzle if swizzle else BOX_ALIGN
    if np.any(gaps != step) or np.any(each[0] * bits // 8 % period) or step * bits // 8 % period:
        return None
    return step
