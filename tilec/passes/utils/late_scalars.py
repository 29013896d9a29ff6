"""Scalars that take memory's time, made by the scopes that need them instead of in front of all."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.core import Block, Op, Substitution, Value, upstream
from tilec.ir.effects import is_clonable

# What a scope begins with that waits for nothing.
_ASKS = (ops.Alloc, ops.SetRegisters, ops.TmaCopy, ops.MbarrierArrive, ops.MbarrierExpectTx)


def load_in_scopes(block: Block, written: Container[Value]) -> Block:
    """`block` whose scopes load for themselves what they need of tensors that are not `written`,
    and compute what follows from it, behind what they ask for without it: no tile's place waits
    for the length of a loop. As it is, where something else needs one of these."""
    late: dict[Value, Op] = {}
    for o in block.ops:
        loads = not o.pure and is_clonable(o, written)
        if loads or (o.pure and any(v in late for v in o.uses)):
            late.update(dict.fromkeys(o.results, o))
    gone = {*late.values()}
    kept = [o for o in block.ops if o not in gone]
    others = (o for o in kept if not isinstance(o, ops.Scope))
    if not late or any(v in late for o in others for v in o.uses):
        return block
    order = [o for o in block.ops if o in gone]
    done = [
        replace(o, body=_loading(o.body, order, late)) if isinstance(o, ops.Scope) else o
        for o in kept
    ]
    return Block(block.args, tuple(done))


def _loading(body: Block, order: list[Op], late: dict[Value, Op]) -> Block:
    """A scope's body that makes those of `late` that it needs, in their `order`."""
    needed = {*upstream((v for o in body.ops for v in o.uses), late)}
    subst: Substitution = {}
    made = [o.clone(subst) for o in order if o in needed]

    def asks(o: Op) -> bool:
        return (o.pure or isinstance(o, _ASKS)) and not any(v in late for v in o.uses)

    at = next((n for n, o in enumerate(body.ops) if not asks(o)), 0)
    return Block(body.args, (*body.ops[:at], *made, *body.ops[at:])).substituted(subst)
