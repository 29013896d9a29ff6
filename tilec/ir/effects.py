"""What ops do besides giving their results: to memory, to the order of threads, to the world.

Every op class states its effects (`Op.effects`; those of control ops are their bodies'), and passes
ask these questions of them rather than of the classes: what is read and written, by which engine,
what is seen outside of the kernel's block, what may be done twice. The model is that of MLIR's
memory effects, with boxes of buffers as resources."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

from tilec.ir.core import Block, Effect, Effects, Func, Op, Region, Value, squeeze, walk
from tilec.ir.types import BufferType

ORDER: Effects = (Effect("order"),)
DESCRIBE: Effects = (Effect("describe"),)
OUTPUT: Effects = (Effect("output"),)


def read(buffer: Value, *box: tuple[Any, ...], engine: str = "threads") -> Effect:
    """`buffer` is read: a box (offsets and extents), or somewhere."""
    return Effect("read", Region(buffer, *box), engine)


def write(buffer: Value, *box: tuple[Any, ...], engine: str = "threads") -> Effect:
    """`buffer` is written: a box (offsets and extents), or somewhere."""
    return Effect("write", Region(buffer, *box), engine)


def update(buffer: Value, engine: str = "threads") -> Effect:
    """What is in `buffer` is changed."""
    return Effect("update", Region(buffer), engine)


# --- questions ---


def effects_in(of: Block | Op) -> Iterator[tuple[Op, Effect]]:
    """What the ops of a block, or an op, and those of the regions inside, do each by itself."""
    for o in walk(of):
        if not o.pure and not o.region_fields:
            for e in o.effects():
                yield o, e


def buffers_read(effects: Iterable[Effect]) -> list[Value]:
    return [e.region.buffer for e in effects if e.region and e.reads]


def buffers_written(effects: Iterable[Effect], whole: bool = False) -> list[Value]:
    """What is written, or only what is written `whole`."""
    found = (e.region for e in effects if e.region and e.writes)
    return [r.buffer for r in found if r.is_whole or not whole]


def written_tensors(block: Block) -> set[Value]:
    """Global tensors that a program writes."""
    return {v for v in buffers_written(e for _, e in effects_in(block)) if v.space == "global"}


def changing_tensors(func: Func) -> set[Value]:
    """Global tensors that may change while a kernel runs: those that it writes; all, if it writes
    one, where an array is passed twice. (Of what tables of addresses name, authors say that it is
    apart, as products by groups are.)"""
    written = written_tensors(func.body)
    if not written or not func.attrs.get("passed_twice"):
        return written
    values = (p.value for p in func.params)
    return {v for v in values if isinstance(v.type, BufferType) and v.space == "global"}


def is_seen(o: Op) -> bool:
    """Whether an op does something that is seen outside of the kernel's block."""
    return any(e.is_seen for e in o.effects())


def acts_beyond_buffers(o: Op) -> bool:
    """Whether an op, or one inside, does something that is no access: others may be told of a part
    of what is done."""
    return any(e.region is None and e.kind != "describe" for _, e in effects_in(o))


def is_clonable(o: Op, written: Container[Value]) -> bool:
    """Whether doing `o` again, elsewhere in the block of threads, gives the same values and no
    effect. `written`: the tensors that the kernel writes."""
    if o.pure:
        return True
    return not o.region_fields and all(
        e.kind == "read" and e.buffer and e.buffer.space == "global" and e.buffer not in written
        for e in o.effects()
    )


def only_act(block: Block) -> Op | None:
    """The one op of `block` that does more than compute, read and tell the compiler something: a
    loop or a branch counts, whatever is in it. None where there are several, or none."""
    acts = [o for o in block.ops if not o.pure and (o.region_fields or not _is_told(o))]
    return acts[0] if len(acts) == 1 else None


def _is_told(o: Op) -> bool:
    return all(e.kind in ("read", "describe") for e in o.effects())


def acting(block: Block) -> list[Op]:
    """The ops of `block` that act, in order: what a reader of the source calls its statements.
    Allocations, reads and stores to variables (`local`) do not count, nor do loops and branches
    that hold nothing else."""
    return [o for o in block.ops if _acts(o)]


def _acts(o: Op) -> bool:
    if o.pure or o.regions:
        return any(_acts(x) for region in o.regions for x in region.ops)
    return not all(_is_quiet(e) for e in o.effects())


def _is_quiet(e: Effect) -> bool:
    if e.region is None or e.kind in ("read", "allocate"):
        return e.region is not None
    return e.region.type.space == "local" and not squeeze(e.region.extents)
