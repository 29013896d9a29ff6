"""`T.tvm_thread_allreduce`, and the reducer that stands around it."""

from __future__ import annotations

import itertools
import math
import types

from tilec import language as T
from tilec.frontend.builtins import Call, builtin
from tilec.frontend.builtins_scalar import index_of_thread
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import AttrHeader, Closure, Reducer, Region, Scalar, describe
from tilec.ir.types import BOOL

FUNCTIONS = Closure | T.Macro | types.FunctionType


@builtin(T.comm_reducer)
def comm_reducer(t: Expressions, c: Call) -> Reducer:
    values = c.several("identity")
    if len(values) != 1 or not isinstance(c["combine"], FUNCTIONS):
        message = "T.comm_reducer takes a function of two values and a list of one number"
        raise t.error(message, "write T.comm_reducer(lambda x, y: x + y, [T.float32(0)])")
    return Reducer(c["combine"], t.number(values[0], "the identity"))


@builtin(T.attr)
def attr(t: Expressions, c: Call) -> AttrHeader:
    reducer = c["node"] if isinstance(c["node"], Reducer) else None
    return AttrHeader(reducer, c["key"] == "async_scope" and bool(c["value"]))


@builtin(T.tvm_thread_allreduce, of="threads")
def tvm_thread_allreduce(t: Expressions, c: Call) -> None:
    reducer, result = t.reducer, c["result"]
    if reducer is None:
        hint = 'put it under with T.attr(T.comm_reducer(…), "reduce_scope", …):'
        raise t.error("T.tvm_thread_allreduce has no reducer", hint)
    if not isinstance(result, Region) or not result.is_element:
        raise c.wrong("result", f"is {describe(result)}, not an element", "name one: reduced[0]")
    dim = _dimension(t, c["thread"])
    value = t.run_time(c.number("value"))
    cond = c["cond"]
    if isinstance(cond, Scalar):
        holds = t.convert(cond, BOOL)
        value = t.select(holds, value, t.convert(reducer.identity, value.dtype))
    shape = t.block_shape
    stride, extent = math.prod(shape[:dim]), shape[dim] if dim < len(shape) else 1
    lanes = min(32, t.warp_size)  # that T.shfl_xor reaches
    neighbours = stride == 1 and math.prod(shape) % t.warp_size == 0
    if neighbours and extent & (extent - 1) == 0 and extent <= lanes:
        found = t.trace_function(_in_lanes, [value, reducer.combine, extent], {})
    elif neighbours and extent % lanes == 0:
        found = t.trace_function(_in_lanes, [value, reducer.combine, lanes], {})
        value = t.run_time(t.number(found, "what is combined"))
        given = [value, reducer.combine, value.dtype, index_of_thread(t, c), lanes]
        found = t.trace_function(_by_groups, [*given, extent, math.prod(shape)], {})
    else:
        index = index_of_thread(t, c)
        place = t.binary("mod", t.binary("floordiv", index, stride), extent)
        first = t.binary("sub", index, t.binary("mul", place, stride))
        widths = [extent]
        while widths[-1] > 1:
            widths.append((widths[-1] + 1) // 2)
        steps = [(to, of - to) for of, to in itertools.pairwise(widths)]
        given = [value, reducer.combine, value.dtype, index, place, first, stride, steps]
        found = t.trace_function(_in_memory, [*given, math.prod(shape)], {})
    t.store(result, t.number(found, "what is combined"))


def _dimension(t: Expressions, index: object) -> int:
    found = t.thread_dims.get(index.value) if isinstance(index, Scalar) else None
    if isinstance(index, int) and index == 0:
        found = len(t.block_shape)  # a dimension of one thread
    if found is None or not t.block_shape:
        message = f"{describe(index)} is no index of this thread in a block of a known shape"
        raise t.error(message, "give what T.get_thread_binding(0) or T.thread_binding returned")
    return found


def _in_lanes(value, combine, extent):  # type: ignore[no-untyped-def]
    """In the language of kernels: neighbours exchange by shuffles."""
    distances = [1 << k for k in range(extent.bit_length() - 1)]
    for distance in distances:
        value = combine(value, T.shfl_xor(value, distance))
    return value


def _by_groups(value, combine, dtype, index, lanes, extent, threads):  # type: ignore[no-untyped-def]
    """In the language of kernels: each thread reads what `lanes` threads together have found."""
    left = T.alloc_shared((threads // lanes,), dtype)
    if index % lanes == 0:
        left[index // lanes] = value
    T.sync_threads()
    first = index // extent * (extent // lanes)
    value = T.cast(left[first], dtype)
    others = list(range(1, extent // lanes))
    for k in others:
        value = combine(value, left[first + k])
    return T.cast(value, dtype)


def _in_memory(value, combine, dtype, index, place, first, stride, steps, threads):  # type: ignore[no-untyped-def]
    """In the language of kernels: the lower half of a group takes what the upper one has left,
    until one thread has all: rounded in halves as shuffles do, not from one end to the other."""
    left = T.alloc_shared((threads,), dtype)
    T.sync_threads()
    left[index] = value
    T.sync_threads()
    for distance, taken in steps:
        if place < taken:
            left[index] = combine(left[index], left[index + distance * stride])
        T.sync_threads()
    return T.cast(left[first], dtype)
