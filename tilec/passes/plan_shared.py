"""plan_shared: the byte offset of every shared buffer and barrier.

Before: shared and barrier buffers have no address. After: all do, and `func.attrs["shared_bytes"]`
is what a block needs. Buffers that are never in use at the same time share bytes: what comes after
a ring's last loop may lie where the ring was; barriers keep theirs for the whole kernel. Raises
ResourceError, with every buffer listed, if the target has less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.ir.core import Func, Op, Value, walk, within
from tilec.ir.errors import ResourceError
from tilec.ir.ops import Alloc, Copy, For, If, Parallel, RingStage, Scope, While
from tilec.ir.uniformity import uniformity_of
from tilec.passes.utils.accesses import together
from tilec.target import Target

FOREVER = 1 << 60


@dataclass
class _Life:
    """A buffer's bytes and the positions of its first and last use in program order."""

    alloc: Alloc
    size: int
    first: int
    last: int
    address: int = -1


def plan_shared(func: Func, target: Target) -> Func:
    lives = _lifetimes(func)
    placed: list[_Life] = []
    for life in sorted(lives, key=lambda x: (-x.alloc.type.alignment_bytes, -x.size)):
        align = life.alloc.type.alignment_bytes
        address = 0
        rivals = [p for p in placed if p.first <= life.last and life.first <= p.last]
        for p in sorted(rivals, key=lambda p: p.address):
            if address + life.size <= p.address:
                break
            address = max(address, p.address + p.size)
            address = (address + align - 1) // align * align
        life.address = address
        placed.append(life)
    total = max((p.address + p.size for p in placed), default=0)
    if total > target.shared_bytes:
        raise _too_much(lives, total, target)
    where = {p.alloc.result: p.address for p in placed}

    def visit(o: Alloc) -> Op | None:
        return replace(o, address=where[o.result]) if o.result in where else None

    return func.rewrite(Alloc, visit).with_attrs(shared_bytes=total)


def _lifetimes(func: Func) -> list[_Life]:
    uniformity = uniformity_of(func)
    lives: dict[Value, _Life] = {}
    for alloc in func.body.every(Alloc):
        if (t := alloc.type).space in ("shared", "barrier"):
            size, whole = t.stage_bytes * t.stages, t.space == "barrier"
            early = 0 if whole or t.stages > 1 else FOREVER
            lives[alloc.result] = _Life(alloc, size, early, FOREVER if whole else -1)
    root = {o.result: o.root for o in func.body.every(RingStage)}
    place = {o: n for n, o in enumerate(walk(func.body))}

    def span(v: Value, o: Op, around: tuple[Op, ...]) -> tuple[int, int]:
        """From where to where a use of a buffer is one."""
        for x in around:
            if isinstance(x, Scope) and x.name == "producer":
                # It fills tiles from the start, and none that the consumers do not wait for: when
                # they have read the last one, nothing is on its way any more.
                return 0, 0
            parted = isinstance(x, For | While | If) and not together(x, uniformity)
            if parted or isinstance(x, Parallel):
                return place[x], place[x]  # where no barrier can stand, all is used at once
            if isinstance(x, For | While) and not any(v in r.made for r in x.regions):
                # What an iteration leaves in a buffer from outside, the next one may read.
                return place[x], place[x] + sum(len(r.inside) for r in x.regions)
        return place[o], place[o]

    for o, around in within(func.body):
        for v in (root.get(v, v) for v in o.operands):
            if (life := lives.get(v)) is not None:
                first, last = span(v, o, around)
                if isinstance(o, Copy) and o.staging and v is root.get(o.staging, o.staging):
                    # TMA reads it after the copy has been passed: in a loop, during the next round.
                    again = any(isinstance(x, For | While) for x in around)
                    first, last = 0 if again else first, FOREVER
                life.first, life.last = min(life.first, first), max(life.last, last)
    used = [x for x in lives.values() if x.last >= 0]
    if func.attrs.get("by_hand"):  # groups use them at the same time, in whatever order
        for x in used:
            x.first, x.last = 0, FOREVER
    return used


def _too_much(lives: list[_Life], total: int, target: Target) -> ResourceError:
    rows = sorted(lives, key=lambda x: -x.size)
    rows, others = rows[:5], rows[5:]
    stages = max((x.alloc.type.stages for x in lives), default=1)
    hint, fits = _smaller(rows[0], total, target), 0
    if stages > 1:
        ring = sum(x.size // x.alloc.type.stages for x in lives if x.alloc.type.stages > 1)
        fits = (target.shared_bytes - (total - ring * stages)) // ring
        if fits >= 1:
            hint = f"num_stages={fits} fits ({stages} stages take {ring * stages:,} bytes)"
    error = ResourceError(
        f"the kernel needs {total:,} bytes of shared memory a block, {target} has "
        f"{target.shared_bytes:,}",
        rows[0].alloc.loc,
        hint,
    )
    error.table = tuple(_row(x) for x in rows)
    if others:
        error.table += (f"{sum(x.size for x in others):>11,} B  in {len(others)} more",)
    error.stages = max(fits, 0)
    return error


def _row(x: _Life) -> str:
    t = x.alloc.type
    stages = f" x {t.stages} stages" if t.stages > 1 else ""
    named = (
        f"{x.alloc.result.name or 'a buffer of tilec'} {t.space} {t.static_shape} {t.dtype.name}"
    )
    return f"{x.size:>11,} B  {named}{stages}"


def _smaller(largest: _Life, total: int, target: Target) -> str:
    """The extents that the largest buffer could have, the longest of them halved as often as it
    takes."""
    room = target.shared_bytes - (total - largest.size)
    shape, size = list(largest.alloc.type.static_shape), largest.size
    while size > room and max(shape) > 1:
        n = shape.index(max(shape))
        size = size // shape[n] * (shape[n] // 2)
        shape[n] //= 2
    if size > room:
        return "use one tile again for another purpose, or make all of them smaller"
    return f"{largest.alloc.result.name or 'the largest'} of {tuple(shape)} fits"
