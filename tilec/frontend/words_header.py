"""Words that head a `for` or `with`, and `T.empty`: as calls they only check and collect
arguments."""

from __future__ import annotations

import ast
import math

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import EmptyTensor, KernelHeader, LoopHeader, Scalar, describe
from tilec.frontend.words import Call, dtype_argument, int_argument, word
from tilec.support.lazy import Lazy

clusters = Lazy("tilec.ir.instr.cluster")  # with it come the tables of all instructions

_MAX_THREADS = 1024


def _loop(t: Expressions, c: Call) -> LoopHeader:
    values = dict(c.values)
    places = {name: t.frame.loc(node) for name, node in c.nodes.items()}
    if "start" in values and values.get("stop") is None:
        values["start"], values["stop"] = 0, values["start"]
        if "start" in places:
            places["stop"] = places.pop("start")
    if "extents" in values and len(c.node.args) == len(values["extents"]):
        places |= {f"extents[{d}]": t.frame.loc(a) for d, a in enumerate(c.node.args)}
    return LoopHeader(c.word, values, t.loc, places)


for _word in (T.serial, T.unroll, T.vectorized, T.Pipelined, T.Parallel, T.Persistent):
    word(_word)(_loop)


@word(T.Kernel)
def kernel(t: Expressions, c: Call) -> KernelHeader:
    extents: list[int | Scalar] = []
    for n, given in enumerate(c["grid"]):
        written = c.node.args[min(n, len(c.node.args) - 1)]
        if isinstance(given, tuple | list):
            message = f"a grid extent is {describe(given)}; extents are arguments of their own"
            hint = ast.unparse(written)[1:-1] if isinstance(written, ast.Tuple) else "gx, gy"
            raise t.error(message, f"write T.Kernel({hint})", written)
        with t.at(written):
            extent = t.number(given, "a grid extent")
        known = static_int(extent)
        if known is not None and known < (0 if t.has_empty_tensor else 1):
            hint = "T.ceildiv(N, BN) rounds up"
            raise t.error(f"a grid extent is {known}, the least is 1", hint, written)
        if isinstance(extent, float) or (isinstance(extent, Scalar) and extent.dtype.is_float):
            hint = "write T.ceildiv(N, BN) or N // BN"
            raise t.error(f"a grid extent is {describe(extent)}, not an integer", hint, written)
        extents.append(extent if known is None else known)
    if len(extents) > 3:
        raise t.error(
            f"a grid has up to 3 extents, {len(extents)} were given",
            "multiply two of them, and take their index apart with // and %",
        )
    if isinstance(c["threads"], tuple | list):
        total = math.prod(static_int(v) or 1 for v in c["threads"])
        message = (
            f"threads of T.Kernel is {describe(c['threads'])}; threads are counted, not laid out"
        )
        raise t.error(message, f"write threads={total}", c.place("threads"))
    threads = None if c["threads"] is None else int_argument(t, c, "threads", 1)
    if threads is not None and threads > _MAX_THREADS:
        raise t.error(
            f"threads of T.Kernel is {threads}, the most is {_MAX_THREADS}",
            f"write threads={_MAX_THREADS} or less, and let each thread do more",
            c.place("threads"),
        )
    cluster = None if c["cluster_dims"] is None else _cluster(t, c, extents)
    said = None if threads is None else t.frame.loc(c.place("threads"))
    return KernelHeader(tuple(extents), threads, t.loc, cluster, said)


def _cluster(t: Expressions, c: Call, extents: list[int | Scalar]) -> tuple[int, int, int]:
    """`cluster_dims`, which must divide the extents that are known."""
    value, at = c["cluster_dims"], c.place("cluster_dims")
    given = value if isinstance(value, tuple | list) else (value,)
    sizes = [static_int(v) for v in given]
    if not 1 <= len(sizes) <= 3 or any(s is None or s < 1 for s in sizes):
        hint = "write an int, or up to three of them: cluster_dims=2"
        raise t.error(f"cluster_dims of T.Kernel is {describe(value)}", hint, at)
    x, y, z = (*(s or 1 for s in sizes), 1, 1)[:3]
    shown, total = "x".join(map(str, (x, y, z)[: len(sizes)])), x * y * z
    if total > clusters.MAX_BLOCKS:
        raise t.error(
            f"a cluster of {shown} has {total} blocks, the most is {clusters.MAX_BLOCKS}",
            "make it smaller: cluster_dims=2",
            at,
        )
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


@word(T.empty)
def empty(t: Expressions, c: Call) -> EmptyTensor:
    given = c["shape"] if isinstance(c["shape"], tuple | list) else (c["shape"],)
    shape: list[int | Scalar] = []
    for e in given:
        extent = t.number(e, "an extent of T.empty")
        known = static_int(extent)
        if isinstance(extent, float) or (known is not None and known < 0):
            message = f"an extent of T.empty is {describe(extent)}"
            hint = "write ints of at least 0, and sizes of T.const or T.dynamic"
            raise t.error(message, hint, c.place("shape"))
        shape.append(extent if known is None else known)
    return EmptyTensor(tuple(shape), dtype_argument(t, c, "dtype"), t.loc)
