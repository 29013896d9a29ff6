"""How a shared tile lies that copies bring and loops over elements read: the banks of its accesses
are counted, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tilec.ir import ops
from tilec.ir.core import Func, Op, Value
from tilec.ir.effects import buffers_read, buffers_written
from tilec.ir.layout import Layout, bank_passes, row_major, swizzled
from tilec.passes.utils.gemm_layouts import SWIZZLES
from tilec.passes.utils.thread_masks import ThreadMasks


def fewest_conflicts(func: Func, buffer: Value, loops: Mapping[ops.Parallel, Layout]) -> Layout:
    """The layout of `buffer` in which loops of these layouts go over the banks least often: in rows
    as they are, where nothing is better and where it is not known who touches what, or with their
    chunks of 16 bytes exchanged, which no copy minds."""
    shape, bits = buffer.buffer.static_shape, buffer.dtype.bits
    rows = row_major(shape)
    fits = len(shape) > 1 and shape[-2] % 8 == 0
    widths = [w for w in SWIZZLES if fits and shape[-1] * bits // 8 % w == 0]
    places = [*_places(func, buffer, loops)] if widths else []
    if not places or any(at is None for at in places):
        return rows

    def passes(memory: Layout) -> int:
        return sum(bank_passes(memory.offsets()[at], bits) for at in places)

    return min((rows, *(swizzled(shape, bits, w) for w in widths)), key=passes)


def _places(func: Func, buffer: Value, loops: Mapping[ops.Parallel, Layout]) -> Iterator[Any]:
    """The elements of each access of a loop, by registers and lanes of a warp; None for one that is
    not known, and for what else is done to the tile than to fill it."""
    inside = {o: p for p in loops for o in p.body.every(ops.ElementAccess)}
    for o in func.body.users[buffer]:
        if isinstance(o, ops.ElementAccess) and o in inside:
            yield _elements(func, o, inside[o], loops[inside[o]])
        elif o.region_fields or buffer not in _filled(o):
            yield None


def _filled(o: Op) -> set[Value]:
    """The buffers that an op writes and does not read."""
    return {*buffers_written(o.effects())} - {*buffers_read(o.effects())}


def _elements(func: Func, o: ops.ElementAccess, p: ops.Parallel, layout: Layout) -> Any:
    values = ThreadMasks(func)
    coords = layout.table("reg", "lane")
    for d, (arg, extent) in enumerate(zip(p.body.args, p.extents)):
        values.known[arg] = np.minimum(coords[..., d], extent - 1)
    found = [values.evaluate(v) for v in o.indices]
    if any(at is None for at in found):
        return None
    inside = zip(found, o.buffer.buffer.static_shape)
    return tuple(np.broadcast_to(np.clip(at, 0, n - 1), coords.shape[:-1]) for at, n in inside)
