"""The stage "plan" of a compiled kernel, for people: the plan that was kept and what it does, those
that were tried before it, and what they were chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir.core import Func
from tilec.ir.schedule import Arrangement, Plan
from tilec.jit.specialise import SpecialisationKey

Tried = tuple[Plan, str | None]
"""A plan and why it was given up: the words alone, since an error holds all that had been made."""


def plan_text(tried: Sequence[Tried], key: SpecialisationKey, final: Func) -> str:
    """The plan that was kept, which copies of loops with stages run ahead in it, or why they do
    not, the plans that were tried before it and why they were not, what the launch packs, and what
    they were chosen from."""
    *others, (kept, _) = tried
    lines = [f"kept: {kept.describe()}"]
    lines += [
        f"line {at}: ahead: {name}, by {engine}, stages: {stages}"
        for at, name, stages, engine in final.attrs.get("ahead", ())
    ]
    lines += [f"line {at}: not ahead: {why}" for at, _, why in final.attrs.get("not_ahead", ())]
    for at, a, statements in final.attrs.get("arranged", ()):
        lines += _arranged_text(at, a, statements)
    lines += [f"packed: {', '.join(key.packed)}"] if key.packed else []
    lines += [f"tried: {plan.describe()}: {why}" for plan, why in others if why is not None]
    choice = key.choice()
    return "\n".join(lines) + "\n" + (f"predicted, best first:\n{choice}" if choice else "")


def _arranged_text(
    line: int, a: Arrangement, statements: Sequence[tuple[int, str]]
) -> Iterator[str]:
    """How the iterations of a loop overlap, as a table: its statements in the order in which an
    iteration of the steady state does them; those of stage 1 are of the iteration before."""
    units = ", ".join(f"{unit} {n}" for unit, n in a.units)
    bounds = ", ".join(f"{what} {n}" for what, n in a.bounds)
    most = max(a.bounds, key=lambda x: x[1])[0]
    yield f"line {line}: iterations overlap; {a.registers} registers of a thread hold fragments"
    yield f"  clocks of an iteration: {units}; one warpgroup's stream {a.stream}"
    yield f"  ({a.in_order} in the order of the source)"
    yield f"  no fewer for: {bounds}; bound by {most}"
    yield f"  versions: {', '.join(f'{name} {n}' for name, n in a.versions)}"
    yield from _second_text(a, statements)
    yield "  stage  line  statement"
    waits = dict(a.waits)
    started = [n for n in a.order if statements[n][1].startswith("gemm")]
    for n in a.order:
        at, what = statements[n]
        notes = [f"at most {waits[n]} products in flight before it"] if n in waits else []
        if a.turns and n in (started[0], started[-1]):
            notes.append("takes the turn" if n == started[0] else "passes the turn on")
        more = f" ({'; '.join(notes)})" if notes else ""
        yield f"  {a.stage[n]:5}  {at:4}  {what}{more}"


def _second_text(a: Arrangement, statements: Sequence[tuple[int, str]]) -> Iterator[str]:
    """The best of the other orders: what it does otherwise, and why it lost."""
    fit, too_large = a.others
    if too_large:
        yield f"  {too_large} other orders take too many registers"
    b = a.second
    if b is None:
        yield "  no other order is legal" + (" and fits" if too_large else "")
        return
    moved = [
        f"{what} in stage {y}" for (_, what), x, y in zip(statements, a.stage, b.stage) if x != y
    ]
    if not moved:
        pairs = zip(a.order, b.order)
        moved = [f"{statements[y][1]} before {statements[x][1]}" for x, y in pairs if x != y][:1]
    moved += [
        f"one version of {name}" for (name, n), (_, m) in zip(a.versions, b.versions) if n > m == 1
    ]
    reasons = [
        (b.clocks > 1.01 * a.clocks, f"an iteration takes {b.clocks} clocks, not {a.clocks}"),
        (a.turns and not b.turns, "its products are no run for which warpgroups take turns"),
        (b.stream > a.stream, f"one warpgroup's stream takes {b.stream} clocks, not {a.stream}"),
        (b.registers > a.registers, f"it takes {b.registers} registers"),
    ]
    why = next((text for holds, text in reasons if holds), "it is as good, and comes later")
    yield f"  best of {fit} others: {', '.join(moved)}: {why}"
