"""`order=` and `stage=` of T.Pipelined: the order that the user gives a loop's statements.

`stage` says in which iteration of the running pipeline a statement works, counted back from the
newest: what stage 0 copies for iteration i + s is used by stage s for iteration i. `order` is each
statement's place in the code. What an iteration computes does not change: where one statement needs
another's data in a later stage, the data decide, and only where both are in one stage is an order
against them an error. Statements are those that act on tiles: copies, products, reductions, loops
and branches around such; -1 leaves a statement to tilec. Where products run beside what threads
compute, `passes/arrange.py` keeps to both lists in the steady state. The idea is that of TVM's
annotations `software_pipeline_stage` and `software_pipeline_order`. `group=` gives one entry to
several statements, as TileLang's programs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.core import Block, Op, Value
from tilec.ir.effects import acting, buffers_written, effects_in
from tilec.ir.ops import For, Gemm, Yield, is_by_hand

_FREE = -1


class BadOrder(Exception):
    """(message, hint): lists that do not fit the loop's body."""


def arrange(
    body: Block, order: Sequence[int], stage: Sequence[int]
) -> tuple[Block, tuple[int, ...], tuple[int, ...]]:
    """`body` with its statements in `order`, as far as their data let it, and both lists for the
    statements as they stand then; either may be empty. Raises BadOrder."""
    statements = acting(body)
    for name, given in (("order", order), ("stage", stage)):
        if given and len(given) != len(statements):
            raise BadOrder(
                f"{name} of T.Pipelined has {len(given)} entries, the loop's body "
                f"{len(statements)} statements that act: {_listed(statements)}",
                f"give each an entry: {name}={_example(name, len(statements))}"
                if statements
                else f"leave {name} out",
            )
        if any(v < _FREE for v in given):
            raise BadOrder(
                f"{name} of T.Pipelined has the entry {min(given)}",
                "count from 0; -1 leaves a statement to tilec",
            )
    placed = [v for v in order if v != _FREE]
    twice = next((v for v in placed if placed.count(v) > 1), None)
    if twice is not None:
        raise BadOrder(
            f"order of T.Pipelined has {twice} twice", "each statement needs a place of its own"
        )
    if stage:
        _check_stages(body, statements, stage)
    if not order:
        return body, (), tuple(stage)
    done = _scheduled(body, statements, order, stage)
    number = {o: i for i, o in enumerate(statements)}
    kept = [number[o] for o in done if o in number]
    places = tuple(order[n] for n in kept)
    return replace(body, ops=tuple(done)), places, tuple(stage[n] for n in kept) if stage else ()


def of_statements(
    body: Block, order: Sequence[int], stage: Sequence[int], group: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both lists for the statements of `body`, from those for groups of them: what is in one stands
    together, in the order that it has. Raises BadOrder."""
    statements = acting(body)
    numbers = [n for part in group for n in part]
    if sorted(numbers) != list(range(len(statements))):
        each = ", ".join(f"[{n}]" for n in range(len(statements)))
        raise BadOrder(
            f"group of T.Pipelined has the statements {sorted(numbers)}, the loop's body "
            f"{len(statements)} that act: {_listed(statements)}",
            f"name each of them once, as in group=[{each}]",
        )
    for name, given in (("order", order), ("stage", stage)):
        if given and len(given) != len(group):
            raise BadOrder(
                f"{name} of T.Pipelined has {len(given)} entries, group {len(group)}",
                f"give each group an entry: {name}={_example(name, len(group))}",
            )
    home = {n: i for i, part in enumerate(group) for n in part}
    at = [home[n] for n in range(len(statements))]
    placed = [n for n in range(len(at)) if order and order[at[n]] != _FREE]
    together = sorted(placed, key=lambda n: (order[at[n]], at[n], n))
    places = {n: i for i, n in enumerate(together)}
    return (
        tuple(places.get(n, _FREE) for n in range(len(at))) if order else (),
        tuple(stage[i] for i in at) if stage else (),
    )


def may_run_ahead(body: Block) -> bool:
    """Whether a loop that says nothing of stages brings tiles to shared memory and multiplies by
    them, so that it is as good as a T.Pipelined: each tile is brought before anything else touches
    it, and nobody orders by hand what threads and engines do."""
    if is_by_hand(body) or any(o.kind == "pipelined" for o in body.every(For)):
        return False
    brought, touched = set[Value](), set[Value]()
    for o in body.statements:
        if not o.region_fields and any(e.kind == "order" for e in o.effects()):
            return False
        found = [(e, e.region.buffer) for _, e in effects_in(o) if e.region is not None]
        if any(e.reads and v.space == "global" for e, v in found):
            tiles = {v for e, v in found if e.writes and v.space == "shared"}
            if tiles & touched:
                return False
            brought |= tiles
        touched |= {v for e, v in found if e.reads or e.writes}
    products = (o for o in body.ops if isinstance(o, Gemm))
    return any(not brought.isdisjoint(x.buffer for x in o.inputs) for o in products)


def _check_stages(body: Block, statements: list[Op], stage: Sequence[int]) -> None:
    """Raise BadOrder where a statement works before what it needs of its own iteration."""
    needs = _needs(body)
    for i, o in enumerate(statements):
        for j, x in enumerate(statements[:i]):
            if _FREE < stage[i] < stage[j] and x in needs[o] and _reads_of(o, x):
                raise BadOrder(
                    f"stage of T.Pipelined puts statement {i} ({_name(o)}) into stage {stage[i]}, "
                    f"before statement {j} ({_name(x)}), whose data it needs, in stage {stage[j]}",
                    f"give statement {i} stage {stage[j]} or a later one",
                )


def _reads_of(o: Op, x: Op) -> bool:
    """Whether an op reads a buffer that an earlier one writes."""
    return not _touched(o)[0].isdisjoint(_touched(x)[1])


def _scheduled(
    body: Block, statements: list[Op], order: Sequence[int], stage: Sequence[int]
) -> list[Op]:
    """The body's ops, each as soon as what it needs is done, statements by their place."""
    needs = _needs(body)
    place = dict(zip(statements, order))
    for i, o in enumerate(statements):
        for j, x in enumerate(statements[:i]):
            against = x in needs[o] and _FREE < place[o] < place[x]
            if against and (not stage or stage[i] == stage[j]):
                raise BadOrder(
                    f"order of T.Pipelined puts statement {i} ({_name(o)}) before statement {j} "
                    f"({_name(x)}), whose data it needs in the same iteration",
                    f"give statement {i} a later place than statement {j}, or a later stage",
                )
    left = [o for o in body.ops if not isinstance(o, Yield)]
    done: list[Op] = []
    while left:
        ready = [o for o in left if not any(x in left for x in needs[o])]
        o = min(ready, key=lambda x: place.get(x, _FREE))  # the first of equal ones
        left.remove(o)
        done.append(o)
    return [*done, *(o for o in body.ops if isinstance(o, Yield))]


def _needs(body: Block) -> dict[Op, set[Op]]:
    """For each op the ops before it that it must stay behind: by value, by memory, and what these
    must."""
    made: dict[Value, Op] = {}
    needs: dict[Op, set[Op]] = {}
    earlier: list[tuple[Op, set[Value | None], set[Value | None]]] = []
    for o in body.ops:
        needs[o] = {made[v] for v in o.uses if v in made}
        reads, writes = _touched(o)
        for x, x_reads, x_writes in earlier:
            if writes & (x_reads | x_writes) or reads & x_writes:
                needs[o].add(x)
        if reads or writes:
            earlier.append((o, reads, writes))
        needs[o] |= {y for x in needs[o] for y in needs[x]}
        for r in o.results:
            made[r] = o
    return needs


def _touched(o: Op) -> tuple[set[Value | None], set[Value | None]]:
    """Buffers that an op reads and writes; None, written, where it keeps its place among others for
    another reason."""
    effects = [e for e in o.effects() if e.kind != "allocate"]
    reads = {e.buffer for e in effects if e.reads}
    return reads, {e.buffer for e in effects if e.kind != "read"}


def _example(name: str, count: int) -> list[int]:
    return [0] * count if name == "stage" else list(range(count))


def _listed(statements: list[Op]) -> str:
    names = [_name(o) for o in statements]
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "") if names else "none"


def _name(o: Op) -> str:
    """A statement briefly."""
    written = () if o.region_fields else buffers_written(o.effects())
    return f"{o.opname} {written[0].name}" if written else f"{o.opname} on line {o.loc.line}"
