"""What to do about a finding: one line where one change is likely to be the right one."""

from __future__ import annotations

from tilec.sim.findings import Finding, Kind

_OURS: tuple[Kind, ...] = (
    "read before wait",
    "missing proxy fence",
    "deadlock",
    "barrier divergence",
    "transaction bytes",
    "operand in flight",
    "register pool",
    "misaligned access",
    "parity can alias",
    "counter not reset",
    "undefined behaviour",
)
"""What a kernel cannot do wrong: these barriers, waits, addresses and operations are the
compiler's."""


def advice(f: Finding) -> str:
    """The change that a finding suggests; "" where there is none."""
    name = f.buffer
    if f.kind in _OURS:
        if f.kind == "undefined behaviour":
            return "tilec gives every operation a result: please report this as its fault"
        return "tilec itself places waits, fences and barriers: please report this as its fault"
    match f.kind:
        case "uninitialised read" if name:
            return f"write {name} before it is read, in the first iteration too"
        case "out of bounds" if name:
            return f"keep the index inside of {name}: a condition, T.min or a larger extent"
        case "never written":
            return f"let the grid (T.ceildiv) and the conditions reach every element of {name}"
        case "data race" if "another block" in f.message or "cluster's block" in f.message:
            return "blocks run in any order: let each write elements that no other one touches"
        case "data race" if f.message.startswith("several threads"):
            return "give each iteration an element of its own, or let one thread write"
        case "data race" | "overwritten before read":
            return (
                "threads and iterations run in any order: read from another buffer, or write in a "
                "loop of its own"
            )
    return ""
