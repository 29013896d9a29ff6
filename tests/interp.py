"""The reference interpreter of the TILE IR: what a kernel means, in NumPy, without a compiler.

`run_tile(func, args)` executes every block of the grid in order and changes the arrays in `args`.
It is the oracle that passes and code generators are tested against, so it follows the docstrings
of `tilec.ir.ops` literally and is slow where slow is simple.

The iterations of a `parallel` run in lockstep as lanes: inside one, a scalar is an array over the
lanes, a condition is a mask, and a `local` buffer allocated there exists once per lane. A kernel
that asks for its thread index runs the same way with its threads as the lanes (enough for programs
free of races). On-chip memory starts as noise, an index out of an on-chip buffer raises
`InterpError`.

What an op computes is its own to say (`Op.evaluate`); those about control flow, threads or printing
are functions decorated with `@executes(Class)`, in `interp_ops` or `interp_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import interp_memory  # noqa: F401  (fills the table of ops)
import interp_ops  # noqa: F401
import numpy as np
from interp_machine import EXECUTE, InterpError, Machine, Memory

from tilec.ir import semantics as num
from tilec.ir.core import Func, Value, walk
from tilec.ir.ops import scalar, schedule, thread

__all__ = ["EXECUTE", "Args", "InterpError", "Machine", "Memory", "bind", "run_tile"]

Args = Mapping[str, Any]
BY_THREAD = (scalar.ThreadIndex, thread.Lane, thread.Warp, schedule.Scope)


def run_tile(func: Func, args: Args, grid: Sequence[int] | None = None, seed: int = 0) -> list[str]:
    """Run `func` for every block; arrays in `args` (by the user's parameter names) are changed in
    place.

    `grid` is needed only where the kernel leaves it to the launch. Returns the lines printed.
    """
    with np.errstate(all="ignore"):
        env = bind(func, args)
        extents = tuple(int(v) for v in grid or _grid(func, env))
        if not extents:
            raise InterpError("the kernel leaves its grid to the launch: give grid=")
        full = (*extents, 1, 1)[:3]
        threads = int(func.attrs.get("threads") or 128)
        lanes = threads if any(isinstance(o, BY_THREAD) for o in walk(func.body)) else 0
        noise = np.random.default_rng(seed)
        printed: list[str] = []
        for z, y, x in product(range(full[2]), range(full[1]), range(full[0])):
            machine = Machine(func, dict(env), (x, y, z), full, threads, lanes, noise, printed)
            machine.run(func.body)
        return printed


def _grid(func: Func, env: dict[Value, Any]) -> tuple[int, ...]:
    machine = Machine(func, dict(env), (0, 0, 0), (1, 1, 1), 1, 0, np.random.default_rng(0), [])
    return tuple(int(v) for v in machine.run(func.grid))


def bind(func: Func, args: Args) -> dict[Value, Any]:
    """The environment of a kernel's parameters."""
    env: dict[Value, Any] = {}
    for p in func.params:
        got = args[p.arg]
        match p.role:
            case "tensor" | "counters":
                kind = p.value.buffer
                if got.dtype != num.numpy_dtype(kind.dtype) or got.ndim != kind.rank:
                    raise InterpError(f"{p.arg}: {got.dtype} of {got.shape} given for {kind}")
                for have, want in zip(got.shape, kind.shape):
                    if isinstance(want, int) and have != want:
                        raise InterpError(f"{p.arg}: {got.shape} does not fit {kind}")
                env[p.value] = Memory(got, kind, safe=np.zeros((), got.dtype))
            case "scalar":
                env[p.value] = num.array(got, p.value.dtype)
            case "size":
                env[p.value] = num.array(got.shape[p.dim], p.value.dtype)
            case "stride":
                env[p.value] = num.array(got.strides[p.dim] // got.itemsize, p.value.dtype)
            case _:
                raise InterpError(f"{p.arg}: no meaning for a parameter of role {p.role!r}")
    return env
