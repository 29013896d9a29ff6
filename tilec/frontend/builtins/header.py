"""Builtins that head a `for` or `with`, and `T.empty`: as calls they only check and collect
arguments. Then `T.annotate_schedule`: what an author fixes of the schedule, checked where it is
written."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.externs import import_text
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import EmptyTensor, KernelHeader, LoopHeader, Scalar, describe
from tilec.ir.ops import AnnotateSchedule
from tilec.ir.types import DType
from tilec.support.lazy import Lazy

clusters = Lazy("tilec.ir.instr.cluster")  # with it come the tables of all instructions

_MAX_THREADS = 1024
_GROUPS = {"cooperative": 1, "pingpong": 2}
_STORES = {"tma": True, "direct": False}
_MOST_CLUSTER = 16  # blocks; what the driver allows at most


@builtin(T.serial, T.unroll, T.vectorized, T.Pipelined, T.Parallel, T.Persistent)
def loop(t: Expressions, c: Call) -> LoopHeader:
    values = dict(c.values)
    places = {name: t.frame.loc(node) for name, node in c.nodes.items()}
    if "start" in values and values.get("stop") is None:
        values["start"], values["stop"] = 0, values["start"]
        if "start" in places:
            places["stop"] = places.pop("start")
    if "extents" in values and len(c.node.args) == len(values["extents"]):
        places |= {f"extents[{d}]": t.frame.loc(a) for d, a in enumerate(c.node.args)}
    return LoopHeader(c.builtin, values, t.loc, places)


@builtin(T.Kernel)
def kernel(t: Expressions, c: Call) -> KernelHeader:
    extents: list[int | Scalar] = []
    for n, given in enumerate(c["grid"]):
        written = c.node.args[min(n, len(c.node.args) - 1)]
        if isinstance(given, tuple | list):
            message = f"a grid extent is {describe(given)}; extents are arguments of their own"
            hint = ast.unparse(written)[1:-1] if isinstance(written, ast.Tuple) else "gx, gy"
            raise t.error(message, f"write T.Kernel({hint})", written)
        extent = t.number(given, "a grid extent", written)
        known = static_int(extent)
        if known is not None and known < (0 if t.may_be_empty else 1):
            hint = "T.ceildiv(N, BN) rounds up"
            raise t.error(f"a grid extent is {known}, the least is 1", hint, written)
        if isinstance(extent, float) or (isinstance(extent, Scalar) and extent.dtype.is_float):
            hint = "write T.ceildiv(N, BN) or N // BN"
            raise t.error(f"a grid extent is {describe(extent)}, not an integer", hint, written)
        extents.append(extent if known is None else known)
    if len(extents) > 3:
        hint = "multiply two of them, and take their index apart with // and %"
        raise t.error(f"a grid has up to 3 extents, {len(extents)} were given", hint)
    block = _block_shape(t, c)
    threads = None if block is None else math.prod(block)
    if threads is not None and threads > _MAX_THREADS:
        hint = f"write threads={_MAX_THREADS} or less, and let each thread do more"
        raise c.wrong("threads", f"is {threads}, the most is {_MAX_THREADS}", hint)
    import_text(t, c, "prelude")
    cluster = None if c["cluster_dims"] is None else _cluster(t, c, extents)
    said = None if threads is None else t.frame.loc(c.place("threads"))
    return KernelHeader(tuple(extents), threads, t.loc, cluster, said, block or ())


def _block_shape(t: Expressions, c: Call) -> tuple[int, ...] | None:
    """Threads along each dimension of a block, as `threads` gives them: an int, or up to three."""
    given = c["threads"]
    if not isinstance(given, tuple | list):
        return None if given is None else (c.integer("threads", 1),)
    shape = [static_int(v) for v in given]
    if not 1 <= len(shape) <= 3 or any(v is None or v < 1 for v in shape):
        hint = "write threads=128, or threads=(32, 4)"
        raise c.wrong("threads", f"is {describe(given)}, not one to three positive ints", hint)
    return tuple(v for v in shape if v is not None)


def _cluster(t: Expressions, c: Call, extents: list[int | Scalar]) -> tuple[int, int, int]:
    """`cluster_dims`, which must divide the extents that are known."""
    hint = "write an int, or up to three of them: cluster_dims=2"
    sizes, at = c.cluster("cluster_dims", hint), c.place("cluster_dims")
    x, y, z = (*sizes, 1, 1)[:3]
    shown, total = "x".join(map(str, sizes)), x * y * z
    if total > clusters.MAX_BLOCKS:
        message = f"a cluster of {shown} has {total} blocks, the most is {clusters.MAX_BLOCKS}"
        raise t.error(message, "make it smaller: cluster_dims=2", at)
    for axis, extent, size in zip("xyz", (*extents, 1, 1) if extents else (), (x, y, z)):
        if isinstance(extent, int) and extent % size:
            fits = math.gcd(extent, size)
            raise t.error(
                f"clusters of {shown} blocks do not divide the grid: it has {extent} blocks in "
                f"{axis}, the cluster {size}",
                f"{fits} in {axis} fits, or round the grid up and leave out what lies beyond it",
                at,
            )
    return x, y, z


@builtin(T.empty, T.alloc_global)
def empty(t: Expressions, c: Call) -> EmptyTensor:
    c, given = _shape_and_dtype(t, c)
    shape: list[int | Scalar] = []
    for e in given:
        extent = t.number(e, "an extent of T.empty")
        known = static_int(extent)
        if isinstance(extent, float) or (known is not None and known < 0):
            hint = "write ints of at least 0, and sizes of T.const or T.dynamic"
            raise t.error(f"an extent of T.empty is {describe(extent)}", hint, c.place("shape"))
        shape.append(extent if known is None else known)
    return EmptyTensor(tuple(shape), c.dtype("dtype"), t.loc)


def _shape_and_dtype(t: Expressions, c: Call) -> tuple[Call, Sequence[Any]]:
    """The call with its dtype by name, and its extents: in one argument, or in one for each."""
    given, last = c["extents"], c["extents"][-1:]
    if len(given) > 1 and isinstance(last[0], str | DType):
        if "dtype" in c.nodes:
            raise t.error(f"T.{c.builtin}: dtype is given twice", "leave one out", c.node.args[-1])
        written = {**c.nodes, "dtype": c.node.args[-1]}
        c, given = replace(c.but(dtype=last[0]), nodes=written), given[:-1]
    if bool(given) == (c["shape"] is not None):
        said = "is given twice" if given else "is missing"
        raise t.error(f"T.{c.builtin}: shape {said}", f"write T.{c.builtin}((M, N), dtype)")
    shape = given[0] if len(given) == 1 else given or c["shape"]
    return c, shape if isinstance(shape, tuple | list) else (shape,)


# --- the schedule ---------------------------------------------------------------------------------


@builtin(T.annotate_schedule)
def annotate_schedule(t: Expressions, c: Call) -> None:
    c.alone()
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
        case "persistent" | "specialise" | "overlap" | "roles":
            return [(name, c.flag(name))]
        case "consumers":
            return [("consumer_groups", _GROUPS[c.choice(name, tuple(_GROUPS))])]
        case "store":
            return [("staged_store", _STORES[c.choice(name, tuple(_STORES))])]
        case "cluster":
            hint = f"write an int, or up to three of them, of at most {_MOST_CLUSTER} blocks"
            sizes = c.cluster(name, f"{hint}: cluster=2", _MOST_CLUSTER)
            return [(name, (*sizes, 1, 1)[:3])]
        case "split" if isinstance(c[name], tuple | list):
            return _split(t, c)
        case _:
            return [(name, c.integer(name, 1))]


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
