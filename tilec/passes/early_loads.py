"""early_loads: what the block reads behind its products is on its way while they run.

Before: LAID_OUT; an element loop behind a pipelined loop reads an element of a tensor whose place
does not depend on the element loop, as a factor or a sink of the block's head does. After: it is
loaded in front of the pipelined loop, once, into a register of each thread, so that nobody waits
for memory at a tile's end, where a multiprocessor has the least else to do. Only of tensors that
the kernel writes nowhere, where no two tensors may overlap, and as few as `MOST`: the registers are
taken while the products run."""

from __future__ import annotations

from tilec.ir.core import Block, Func, Op, Substitution, Value
from tilec.ir.effects import changing_tensors
from tilec.ir.ops import For, Load, Parallel
from tilec.ir.uniformity import Level, uniformity_of
from tilec.target import Target

MOST = 4


def early_loads(func: Func, target: Target) -> Func:
    if func.attrs.get("may_alias"):
        return func
    found = _Found(func)
    found.search(func.body, {p.value for p in func.params})
    if not found.moved:
        return func
    gone = {x.result for loads in found.moved.values() for x in loads}

    def visit(o: Op) -> None | list[Op]:
        if isinstance(o, Load) and (o.result in gone or o.result in found.instead):
            return []
        if isinstance(o, For) and o.body.args[0] in found.moved:
            return [*found.moved[o.body.args[0]], o]
        return None

    return func.rewrite(Op, visit, found.instead)


class _Found:
    """`moved`: loads, by the index of the loop that they go in front of; `instead`: what has the
    same element as one of these, and the other's value."""

    def __init__(self, func: Func) -> None:
        self.written = changing_tensors(func)
        self.uniformity = uniformity_of(func)
        self.moved: dict[Value, list[Load]] = {}
        self.instead: Substitution = {}

    def search(self, block: Block, known: set[Value]) -> None:
        """`known`: values from before the block."""
        known, loop = known | {*block.args}, None
        for o in block.ops:
            if loop is None and isinstance(o, For) and o.kind == "pipelined":
                loop = o.body.args[0]
            elif loop is None:
                known |= {*o.results}
            elif isinstance(o, Parallel):
                for x in o.body.ops:
                    if isinstance(x, Load) and self.is_early(x, known):
                        self.move(x, loop)
            for region in o.regions:
                self.search(region, known)

    def is_early(self, x: Load, known: set[Value]) -> bool:
        return (
            x.source.space == "global"
            and x.source not in self.written
            and all(v in known and self.uniformity.level(v) == Level.BLOCK for v in x.indices)
        )

    def move(self, x: Load, loop: Value) -> None:
        moved = self.moved.setdefault(loop, [])
        same = next((y for y in moved if (y.source, y.indices) == (x.source, x.indices)), None)
        if same is not None:
            self.instead[x.result] = same.result
        elif len(moved) < MOST:
            moved.append(x)
