"""What a program of `user_programs` is: a kernel's function, the arrays it is called with (outputs
among them), and `want`, which computes from these what the outputs must hold."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One program. `options`: compile-time parameters. `local`: it indexes registers at run time,
    so that local memory is no fault. `wide`: indices have 64 bits."""

    function: Callable[..., Any]
    make: Callable[[Rng], Arrays]
    want: Callable[[Arrays], Arrays]
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 2e-3
    local: bool = False
    wide: bool = False


CASES: dict[str, Case] = {}


def case(
    make: Callable[[Rng], Arrays],
    want: Callable[[Arrays], Arrays],
    name: str = "",
    **rest: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated kernel function as a case."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[name or function.__name__] = Case(function, make, want, **rest)
        return function

    return add


def half(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def single(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def blank(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An output that shows what was not written."""
    return np.full(shape, 77, dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def product_case(
    name: str,
    m: int,
    n: int,
    k: int,
    *,
    ta: bool = False,
    tb: bool = False,
    dtype: Any = np.float16,
    out: Any = np.float32,
    tolerance: float = 2e-3,
    wide_indices: bool = False,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A case whose function computes C = A @ B (transposed as given)."""

    def make(rng: Rng) -> Arrays:
        a = rng.standard_normal((k, m) if ta else (m, k)).astype(dtype)
        b = rng.standard_normal((n, k) if tb else (k, n)).astype(dtype)
        return {"A": a, "B": b, "C": blank(m, n, dtype=out)}

    def want(x: Arrays) -> Arrays:
        a, b = wide(x["A"]), wide(x["B"])
        return {"C": (a.T if ta else a) @ (b.T if tb else b)}

    return case(make, want, name, options=options, tolerance=tolerance, wide=wide_indices)
