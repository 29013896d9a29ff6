"""Words that head a `for` or `with`, and `T.empty`: as calls they only check and collect
arguments."""

from __future__ import annotations

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import EmptyTensor, KernelHeader, LoopHeader, Scalar, describe
from tilec.frontend.words import Call, dtype_argument, int_argument, word

_MAX_THREADS = 1024


def _loop(t: Expressions, c: Call) -> LoopHeader:
    values = dict(c.values)
    if "start" in values and values.get("stop") is None:
        values["start"], values["stop"] = 0, values["start"]
    return LoopHeader(c.word, values, t.loc)


for _word in (T.serial, T.unroll, T.vectorized, T.Pipelined, T.Parallel, T.Persistent):
    word(_word)(_loop)


@word(T.Kernel)
def kernel(t: Expressions, c: Call) -> KernelHeader:
    extents: list[int | Scalar] = []
    for given in c["grid"]:
        extent = t.number(given, "a grid extent")
        known = static_int(extent)
        if known is not None and known < 1:
            raise t.error(f"a grid extent is {known}, the least is 1")
        if isinstance(extent, float) or (isinstance(extent, Scalar) and extent.dtype.is_float):
            hint = "write T.ceildiv(N, BN) or N // BN"
            raise t.error(f"a grid extent is {describe(extent)}, not an integer", hint)
        extents.append(extent if known is None else known)
    if len(extents) > 3:
        raise t.error(f"a grid has up to 3 extents, {len(extents)} were given")
    threads = None if c["threads"] is None else int_argument(t, c, "threads", 1)
    if threads is not None and threads > _MAX_THREADS:
        raise t.error(
            f"threads of T.Kernel is {threads}, the most is {_MAX_THREADS}", at=c.place("threads")
        )
    return KernelHeader(tuple(extents), threads, t.loc)


@word(T.empty)
def empty(t: Expressions, c: Call) -> EmptyTensor:
    given = c["shape"] if isinstance(c["shape"], tuple | list) else (c["shape"],)
    shape: list[int | Scalar] = []
    for e in given:
        extent = t.number(e, "an extent of T.empty")
        known = static_int(extent)
        if isinstance(extent, float) or (known is not None and known < 0):
            raise t.error(f"an extent of T.empty is {describe(extent)}", at=c.place("shape"))
        shape.append(extent if known is None else known)
    return EmptyTensor(tuple(shape), dtype_argument(t, c, "dtype"), t.loc)
