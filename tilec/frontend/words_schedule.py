"""`T.annotate_schedule`: what an author fixes of the schedule, checked where it is written."""

from __future__ import annotations

from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import describe
from tilec.frontend.words import Call, bool_argument, choice_argument, int_argument, word
from tilec.ir.ops import AnnotateSchedule

_TEAMS = {"cooperative": 1, "pingpong": 2}
_STORES = {"tma": True, "direct": False}
_MOST_CLUSTER = 16  # blocks; what the driver allows at most


@word(T.annotate_schedule)
def annotate_schedule(t: Expressions, c: Call) -> None:
    if t.parallel is not None or len(t.builders) > 1:
        message = "T.annotate_schedule stands at the top level of a kernel, in no loop or if"
        raise t.error(message, "move it up, right below with T.Kernel")
    if c.node.args:
        raise t.error("T.annotate_schedule takes keywords only", "write stages=4", c.node.args[0])
    if any(isinstance(o, AnnotateSchedule) for o in t.builder.ops):
        raise t.error("this kernel has a T.annotate_schedule already", "write all in one")
    given = [name for name, value in c.values.items() if value is not None]
    if not given:
        raise t.error("T.annotate_schedule() fixes nothing", f"it has: {', '.join(c.values)}")
    t.emit(AnnotateSchedule, tuple(f for name in given for f in _fields(t, c, name)))


def _fields(t: Expressions, c: Call, name: str) -> list[tuple[str, Any]]:
    """The fields of a plan that the keyword `name` fixes, and their values."""
    match name:
        case "persistent" | "specialise":
            return [(name, bool_argument(t, c, name))]
        case "consumers":
            return [("teams", _TEAMS[choice_argument(t, c, name, tuple(_TEAMS))])]
        case "store":
            return [("staged_store", _STORES[choice_argument(t, c, name, tuple(_STORES))])]
        case "cluster":
            return [(name, _cluster(t, c))]
        case "split" if isinstance(c[name], tuple | list):
            return _split(t, c)
        case _:
            return [(name, int_argument(t, c, name, 1))]


def _split(t: Expressions, c: Call) -> list[tuple[str, int]]:
    """`split=(2, 8)`: clusters of two blocks, eight of them through global memory."""
    sizes = [static_int(v) for v in c["split"]]
    if len(sizes) != 2 or any(s is None or s < 1 for s in sizes):
        raise t.error(
            f"split of T.annotate_schedule is {describe(c['split'])}",
            "write an int, or the blocks of a cluster and how many such clusters share a sum: "
            "split=(2, 8)",
            c.place("split"),
        )
    return [(name, s or 1) for name, s in zip(("split", "parts"), sizes)]


def _cluster(t: Expressions, c: Call) -> tuple[int, int, int]:
    value = c["cluster"]
    given = value if isinstance(value, tuple | list) else (value,)
    sizes = [static_int(v) for v in given]
    total = 1
    for s in sizes:
        total *= s or 0
    if not 1 <= len(sizes) <= 3 or any(s is None or s < 1 for s in sizes) or total > _MOST_CLUSTER:
        raise t.error(
            f"cluster of T.annotate_schedule is {describe(value)}",
            f"write an int, or up to three of them, of at most {_MOST_CLUSTER} blocks: cluster=2",
            c.place("cluster"),
        )
    x, y, z = (*(s or 1 for s in sizes), 1, 1)[:3]
    return x, y, z
