"""What the tests of the front end share: tracing a function for given arrays, and running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from interp import run_tile

from tilec.frontend import Specialisation, TensorFact, bind_constants, read_signature, trace
from tilec.ir.core import Func, Op, walk
from tilec.ir.options import Options
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_func
from tilec.ir.semantics import numpy_dtype
from tilec.ir.types import DTYPES as OURS
from tilec.ir.types import DType
from tilec.ir.verify import verify

Arrays = Mapping[str, np.ndarray]
DTYPES: dict[Any, DType] = {numpy_dtype(d): d for d in OURS.values() if d.short != "tf32"}


def fact(name: str, array: np.ndarray, written: Any, sizes: Mapping[str, bool]) -> TensorFact:
    """What a launch would know of `array`: sizes with a name are run-time, others compile-time."""
    written = written or (None,) * array.ndim
    shape: list[int | str] = []
    for dim, (extent, given) in enumerate(zip(array.shape, written, strict=True)):
        dynamic = isinstance(given, str) and not sizes.get(given, False)
        shape.append(
            (given if given.isidentifier() else f"{name}_size{dim}") if dynamic else extent
        )
    strides: list[int | str] = []
    step: int | None = 1
    for dim in reversed(range(array.ndim)):
        stride = array.strides[dim] // array.itemsize
        strides.insert(0, stride if step == stride else f"{name}_stride{dim}")
        extent = shape[dim]
        step = step * extent if step is not None and isinstance(extent, int) else None
    return TensorFact(tuple(shape), DTYPES[array.dtype], tuple(strides), array.itemsize)


def traced(
    function: Callable[..., Any],
    arrays: Arrays,
    *,
    out: tuple[str, ...] = (),
    threads: int | None = None,
    grid: Any = None,
    wide: bool = False,
    **constants: Any,
) -> Func:
    """The function as TILE IR for these arrays, verified, and the same after a round trip through
    text."""
    signature = bind_constants(read_signature(function, Options(out)), constants)
    facts = {
        p.name: fact(p.name, arrays[p.name], p.shape, signature.sizes)
        for p in signature.parameters
        if p.kind == "tensor"
    }
    known = Specialisation(facts, {}, constants, threads, grid, wide)
    func = trace(signature, known)
    verify(func, "TILE")
    text = print_func(func)
    assert print_func(parse_func(text)) == text
    return func


def run(
    function: Callable[..., Any], arrays: Arrays, *, launch: Any = None, **options: Any
) -> dict[str, Any]:
    """Trace and interpret; the arrays afterwards, with those that the kernel allocates. Scalars are
    passed among the arrays. `launch`: the grid given by the launch."""
    scalars = {n: a for n, a in arrays.items() if not isinstance(a, np.ndarray)}
    given = {n: a for n, a in arrays.items() if isinstance(a, np.ndarray)}
    func = traced(function, given, grid=None if launch is None else "launch", **options)
    args: dict[str, Any] = {**{n: a.copy() for n, a in given.items()}, **scalars}
    sizes = {
        p.value.name: args[p.arg].shape[p.dim]
        for p in func.params
        if p.role == "size" and p.arg in args
    }
    for name, shape, dtype in func.attrs["outputs"]:
        if name not in args:
            extents = [e if isinstance(e, int) else eval(e, {}, sizes) for e in shape]
            args[name] = np.zeros(extents, numpy_dtype(dtype))
    args["printed"] = run_tile(func, args, launch)
    return args


def ops(func: Func, cls: type[Op]) -> list[Any]:
    """The ops of one class in the body."""
    return [o for o in walk(func.body) if isinstance(o, cls)]
