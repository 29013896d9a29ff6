"""What the tests of forms of products share: one source, run for the CPU and, thread by thread,
under every plan of a GPU target."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from frontend_help import fact
from thread_interp import run_threads

import tilec
from tilec.frontend import Specialisation, TensorFact, bind_constants, read_signature, trace
from tilec.ir.core import Func
from tilec.ir.errors import ResourceError
from tilec.ir.printer import print_func
from tilec.ir.schedule import Plan
from tilec.ir.verify import verify
from tilec.passes import DECIDE, EXPAND, NORMALISE, apply
from tilec.passes.utils.plans import take_wanted, with_plan
from tilec.target import Target, find_target
from tilec.tune.plans import plans

Arrays = dict[str, np.ndarray]
SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))
GPUS = (SM90, SM80, GFX942)


def alignment(a: np.ndarray) -> int:
    """What a launch would say of an array: the power of two up to 16 bytes that divides its base
    and its strides."""
    align = 16
    while a.ctypes.data % align:
        align //= 2
    for dim, step in enumerate(a.strides):
        if dim < a.ndim - 1 or step != a.itemsize:
            align = min(align, step & -step) if step > 0 else a.itemsize
    return a.itemsize if a.size == 0 else align


def aligned(a: np.ndarray, by: int = 64) -> np.ndarray:
    """A contiguous copy whose base is a multiple of `by` bytes."""
    raw = np.empty(a.size + by // a.itemsize, a.dtype)
    start = -raw.ctypes.data % by // a.itemsize
    out = raw[start : start + a.size].reshape(a.shape)
    out[...] = a
    return out


def tile_func(function: Callable[..., Any], arrays: Arrays, wide: bool = False, **o: Any) -> Func:
    """The function as TILE IR for these arrays, with the facts a launch would give."""
    signature = bind_constants(read_signature(function), o)
    facts = {}
    for p in signature.parameters:
        if p.kind == "tensor":
            a = arrays[p.name]
            known = fact(p.name, a, p.shape, signature.sizes)
            facts[p.name] = TensorFact(known.shape, known.dtype, known.strides, alignment(a))
    func = trace(signature, Specialisation(facts, {}, o, None, None, wide))
    verify(func, "TILE")
    return func


_NORMAL: dict[tuple[str, str], Func] = {}
_LOWERED: dict[tuple[str, str, Plan], Func] = {}


def lower(func: Func, target: Target, plan: Plan) -> Func:
    """`run_plan`, once for functions that read alike: another size of an array is not seen in
    them; what comes before plans once for all of them. Raises ResourceError."""
    about = print_func(func), target.name
    if about not in _NORMAL:
        _NORMAL[about] = apply(NORMALISE, take_wanted(func)[0], target, None)
    key = *about, plan
    if key not in _LOWERED:
        _LOWERED[key] = apply((*DECIDE, *EXPAND), with_plan(_NORMAL[about], plan), target, None)
    return _LOWERED[key]


def lowered(func: Func, target: Target, some: bool = False) -> Iterator[tuple[Plan, Func]]:
    """The function under every kind of plan that fits, each in the first of its sizes that does;
    sums that go through global memory are for the simulator. `some`: the first kind, the plainest,
    and one in four of the others, which differ from program to program."""
    fits: set[str] = set()
    found = [plan for plan in plans(func, target) if plan.parts == 1]
    kinds = list(dict.fromkeys(plan.name for plan in found))
    first = zlib.crc32(print_func(func).encode())
    chosen = {n for i, n in enumerate(kinds) if n in (kinds[0], "plain") or not (i + first) % 4}
    for plan in found:
        wanted = not some or plan.name in chosen or (plan.name == kinds[-1] and not fits)
        if plan.name not in fits and wanted:
            try:
                yield plan, lower(func, target, plan)
                fits.add(plan.name)
            except ResourceError:
                continue
    assert fits, "no plan fits"


def outermost(func: Func, target: Target) -> list[tuple[Plan, Func]]:
    """The function under the first and the last kind of plan that fits."""
    kinds: dict[str, list[Plan]] = {}
    for plan in plans(func, target):
        if plan.parts == 1:
            kinds.setdefault(plan.name, []).append(plan)

    def first_of(names: Iterable[str]) -> tuple[Plan, Func]:
        for plan in (plan for name in names for plan in kinds[name]):
            with contextlib.suppress(ResourceError):
                return plan, lower(func, target, plan)
        raise AssertionError("no plan fits")

    first, last = first_of(kinds), first_of(reversed(kinds))
    return [first] if first[0].name == last[0].name else [first, last]


def on_cpu(function: Callable[..., Any], arrays: Arrays, **options: Any) -> Arrays:
    """Call the kernel on copies of the arrays; what they hold afterwards."""
    held = {k: _same_strides(a) for k, a in arrays.items()}
    tilec.kernel(function)(**held, **options)
    return held


def on_threads(
    func: Func, target: Target, arrays: Arrays, launched: int = 2
) -> Iterator[tuple[Plan, Func, Arrays]]:
    """Run `func` (TILE) on copies of the arrays, under some of the target's plans."""
    for plan, done in lowered(func, target, some=True):
        held = {k: _same_strides(a) for k, a in arrays.items()}
        run_threads(done, target, held, launched)
        yield plan, done, held


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-3) -> None:
    """The error in norm relative to the norm of `want` (float64)."""
    mine = got.astype(np.float64)
    assert np.isfinite(mine).all(), "an element was not written, or is not finite"
    error = np.linalg.norm(mine - want) / (np.linalg.norm(want) or 1.0)
    assert error <= tolerance, f"relative error {error}"


def _same_strides(a: np.ndarray) -> np.ndarray:
    """A copy with the same strides and alignment, of the memory around a view, too."""
    base = a
    while isinstance(base.base, np.ndarray):
        base = base.base
    if base is a:
        return aligned(a)
    raw = np.empty(base.size + 64 // a.itemsize, a.dtype)
    shift = (base.ctypes.data - raw.ctypes.data) % 64
    np.ndarray(base.shape, a.dtype, raw, shift, base.strides)[...] = base
    return np.ndarray(a.shape, a.dtype, raw, shift + a.ctypes.data - base.ctypes.data, a.strides)
