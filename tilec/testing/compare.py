"""Comparing arrays: how far apart each pair of elements may be, and a report of those that are not.

Floats are compared in float64, integers as integers, so that a float64 (or any wider) reference
needs no rounding to the result's dtype first.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilec.ir.caller import for_users
from tilec.ir.errors import LaunchError, shown
from tilec.runtime.tensors import own_dtype
from tilec.testing.pattern import describe_pattern

Array = npt.NDArray[Any]

# Relative and absolute tolerance by the dtype of the actual value: a few units in its last place.
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "tfloat32": (1e-3, 1e-4),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3": (0.125, 1e-3),
    "float8_e4m3fnuz": (0.125, 1e-3),
    "float8_e5m2": (0.25, 1e-3),
    "float8_e5m2fnuz": (0.25, 1e-3),
}
_SHOWN = 5  # of the worst elements


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`wrong`: which elements differ by more than `atol + rtol * |expected|`, or in being nan or
    infinite; `actual` and `expected` as they were compared."""

    actual: Array
    expected: Array
    wrong: npt.NDArray[np.bool_]
    rtol: float
    atol: float
    dtype: str

    @property
    def ok(self) -> bool:
        """Whether no element is wrong."""
        return not self.wrong.any()

    @property
    def count(self) -> int:
        """How many elements are wrong."""
        return int(self.wrong.sum())

    def report(self, name: str = "the result") -> str:
        """What is wrong, in lines: how many elements, the worst of them, nan and infinity, and
        whether they form rows, columns or tiles."""
        total = self.wrong.size
        lines = [
            f"{name}: {self.count} of {total} elements are wrong ({self.count / total:.2%}); "
            f"shape {self.wrong.shape}, {self.dtype}, rtol={self.rtol:g}, atol={self.atol:g}"
        ]
        lines += self._worst()
        for kind, test in (("nan", np.isnan), ("infinite", np.isinf)):
            lines += self._special(kind, test)
        return "\n".join([*lines, *(f"  {line}" for line in describe_pattern(self.wrong))])

    def _worst(self) -> list[str]:
        """The elements that are furthest from where they may be, finite ones first."""
        finite = self.wrong & np.isfinite(self.actual) & np.isfinite(self.expected)
        if not finite.any():
            return []
        off = np.where(finite, _distance(self.actual, self.expected), -1.0)
        allowed = self.atol + self.rtol * np.abs(self.expected.astype(np.float64))
        excess = np.where(finite, off - allowed, -np.inf)
        most = min(_SHOWN, int(finite.sum()))
        at = np.argpartition(-excess.ravel(), most - 1)[:most]
        at = at[np.argsort(-excess.ravel()[at], kind="stable")]
        lines = ["  worst:"]
        for flat in at:
            where = np.unravel_index(flat, self.wrong.shape)
            index = f"[{', '.join(str(int(i)) for i in where)}]"
            got, want = self.actual[where], self.expected[where]
            share = f", {off[where] / abs(want):.3g} of it" if want else ""
            lines.append(
                f"    {index}: got {_number(got)}, expected {_number(want)} "
                f"(off by {off[where]:.3g}{share})"
            )
        return lines

    def _special(self, kind: str, test: Any) -> list[str]:
        if self.actual.dtype.kind not in "fc":
            return []
        mine, theirs = test(self.actual), test(self.expected)
        lines = []
        for which, words in (
            (mine & ~theirs & self.wrong, f"are {kind} and should not be"),
            (theirs & ~mine & self.wrong, f"should be {kind} and are not"),
            (mine & theirs & self.wrong, f"are {kind} in another way than they should be"),
        ):
            if which.any():
                first = [int(i) for i in np.argwhere(which)[0]]
                lines.append(f"  {int(which.sum())} {words}, the first at {first}")
        return lines


@for_users
def assert_close(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """Raise AssertionError, with a report, unless `actual` is near `expected`.

    Both are arrays of one shape (torch tensors on any device, NumPy arrays, anything with
    `__array__` or `__dlpack__`), numbers, or sequences and dictionaries of these. An element is
    right if it is within `atol + rtol * |expected|`; without them tolerances follow from the dtype
    of `actual`: integers are equal, `expected` may be of a wider dtype. A nan is right where a nan
    is expected (unless `equal_nan=False`), an infinity where the same one is. `msg` begins the
    report.

    Raises LaunchError for what is no array, and for tolerances that are none.
    """
    __tracebackhide__ = True
    faults = _faults(actual, expected, rtol, atol, equal_nan, "the result")
    if faults:
        raise AssertionError("\n".join([*([msg] if msg else []), *faults]))


def _faults(
    actual: Any, expected: Any, rtol: float | None, atol: float | None, nan: bool, name: str
) -> list[str]:
    pairs: list[tuple[Any, Any, str]]
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if actual.keys() != expected.keys():
            names = ", ".join(map(str, expected)) or "nothing"
            return [f"{name} holds {', '.join(map(str, actual)) or 'nothing'}, expected {names}"]
        pairs = [(actual[k], expected[k], f"{name}[{k!r}]") for k in expected]
    elif _is_several(expected) and _is_several(actual):
        if len(actual) != len(expected):
            return [f"{name} is {len(actual)} values, expected {len(expected)}"]
        pairs = [(a, e, f"{name}[{i}]") for i, (a, e) in enumerate(zip(actual, expected))]
    else:
        a, dtype = as_numpy(actual, "actual")
        e, _ = as_numpy(expected, "expected")
        if a.shape != e.shape:
            return [f"{name} has the shape {a.shape}, expected {e.shape}"]
        found = _compared(a, e, dtype, rtol, atol, nan)
        return [] if found.ok else [found.report(name)]
    return [f for a, e, n in pairs for f in _faults(a, e, rtol, atol, nan, n)]


def compare(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    equal_nan: bool = True,
) -> Comparison:
    """`assert_close` of two arrays of one shape, without the assertion. Raises LaunchError."""
    a, dtype = as_numpy(actual, "actual")
    e, _ = as_numpy(expected, "expected")
    if a.shape != e.shape:
        message = f"actual has the shape {a.shape}, expected {e.shape}"
        raise LaunchError(message, hint="compare arrays of one shape")
    return _compared(a, e, dtype, rtol, atol, equal_nan)


def _compared(
    a: Array, e: Array, dtype: str, rtol: float | None, atol: float | None, equal_nan: bool
) -> Comparison:
    usual = TOLERANCES.get(dtype, (0.0, 0.0))
    r, t = (_tolerance(n, v, u) for n, v, u in zip(("rtol", "atol"), (rtol, atol), usual))
    if a.dtype.kind in "biu" and e.dtype.kind in "biu" and not r and not t:
        return Comparison(a, e, np.asarray(a != e), r, t, dtype)
    wide = np.complex128 if "c" in (a.dtype.kind, e.dtype.kind) else np.float64
    a, e = a.astype(wide), e.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        wrong = ~(_distance(a, e) <= t + r * np.abs(e))
        wrong |= ~(np.isfinite(a) & np.isfinite(e))
        wrong &= a != e  # infinities
    if equal_nan:
        wrong &= ~(np.isnan(a) & np.isnan(e))
    return Comparison(a, e, wrong, r, t, dtype)


def _distance(a: Array, e: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        if a.dtype.kind in "biu":
            a, e = a.astype(np.float64), e.astype(np.float64)
        return np.asarray(np.abs(a - e))


def _tolerance(name: str, given: Any, usual: float) -> float:
    if given is None:
        return usual
    if not isinstance(given, int | float) or isinstance(given, bool) or not given >= 0:
        raise LaunchError(f"{name} is {shown(given)}", hint=f"write a number from 0: {name}=1e-3")
    return float(given)


def _is_several(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _number(value: Any) -> str:
    return str(value) if value.dtype.kind in "biu" else f"{value:.6g}"


def as_numpy(value: Any, what: str) -> tuple[Array, str]:
    """An array on the CPU with the same elements (float64 where NumPy has no such dtype), and
    tilec's name of its own dtype. Raises LaunchError."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            dtype, found = own_dtype(value.dtype), value.detach().resolve_conj().resolve_neg()
            if dtype == "bfloat16" or dtype.startswith("float8"):
                found = found.double()
            return np.asarray(found.cpu().numpy()), dtype
        if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
            value = value.get()  # CuPy's, which does not turn to NumPy by itself
        elif not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            value = np.from_dlpack(value)
        array = np.asarray(value)
    except Exception as e:  # of whatever kind: the array is anybody's
        message = f"{what} cannot be read as an array: {type(e).__name__}: {shown(str(e))}"
        raise LaunchError(message, hint="pass a torch tensor or a NumPy array") from e
    dtype = own_dtype(array.dtype.name)
    if array.dtype.kind not in "biufc":
        ml_dtypes = importlib.import_module("ml_dtypes")
        if not hasattr(ml_dtypes, array.dtype.name):
            message = f"{what} is {shown(value)}, no array of numbers"
            raise LaunchError(message, hint="pass a torch tensor or a NumPy array")
        array = array.astype(np.float64)
    return array, dtype
