"""Trying a candidate: what it computes, whether that is right, how long it takes.

A call may write its arguments. Candidates write copies of them, which are what they were before
each run that is looked at, so that the caller's arrays are as he left them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilec.autotuning.candidates import Candidate, Problem, answer_of, named
from tilec.bench import Timing, do_bench
from tilec.ir.errors import LaunchError
from tilec.jit.compiled import CompiledKernel
from tilec.jit.launchpath import spread_grid
from tilec.runtime.tensors import own_dtype
from tilec.testing.compare import compare

# How far results of two orders of one sum may be apart, of an element and of the usual size of
# elements; what goes wrong in a kernel is further off.
SLACK: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 2e-3,  # TF32 where the kernel asks for it
    "float16": 1e-2,
    "bfloat16": 5e-2,
}
_OF_EIGHT_BITS = 0.3


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of a candidate: its configuration, its plan in words, the predicted seconds (inf:
    none), and the time that was measured, or the reason why there is none."""

    config: Mapping[str, Any]
    plan: str
    predicted: float
    timing: Timing | None = None
    reason: str = ""

    def __str__(self) -> str:
        found = named(self.config, self.plan)
        return f"{found}: {self.timing if self.timing is not None else self.reason}"


class Unlike(LaunchError):
    """The reference gives something else than the kernel: nobody's result can be checked."""


class Trials:
    """Runs candidates of one problem. `args` and `kwargs` are the call's, for `reference`, which
    computes what is right. `rtol` and `atol` as in `assert_close`; None: see SLACK."""

    def __init__(
        self,
        problem: Problem,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        reference: Callable[..., Any] | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        self._problem, self._reference = problem, reference
        self._args, self._kwargs = args, kwargs
        self._rtol, self._atol = rtol, atol
        self._copies: dict[str, Any] | None = None
        self._want: list[Any] | None = None
        # Results that differ, and who has them.
        self._groups: list[tuple[list[Any], list[Candidate]]] = []

    def check(self, candidate: Candidate, variant: CompiledKernel) -> str:
        """Run the candidate once; why its result is wrong, "" if it is not, as far as can be told
        by now. Raises TilecError."""
        results = self._results(candidate, variant)
        if self._reference is not None:
            return self._differs(results, self._wanted(variant))
        for known, members in self._groups:
            if not self._differs(results, known):
                members.append(candidate)
                return ""
        self._groups.append(([_copy(r, "a result") for r in results], [candidate]))
        return ""

    def outvoted(self) -> list[Candidate]:
        """Candidates whose results most others contradict: without a reference, the largest group
        of those that agree is taken to be right, of equals the one that was there first."""
        if not self._groups:
            return []
        right = max(self._groups, key=lambda g: len(g[1]))
        return [c for group in self._groups if group is not right for c in group[1]]

    def time(
        self, candidate: Candidate, variant: CompiledKernel, warmup: float, rep: float
    ) -> Timing:
        """How long a call takes. Raises TilecError."""
        run, place = self._launcher(candidate, variant), candidate.asked.call.place
        timing: Timing = do_bench(run, warmup, rep, device=place)
        return timing

    def _launcher(self, candidate: Candidate, variant: CompiledKernel) -> Callable[[], Any]:
        values = {**self._problem.given, **self._written(variant)}
        given = {p.name: values[p.name] for p in variant.parameters if p.name in values}
        if self._problem.grid is None:
            return lambda: variant(**given)
        grid = spread_grid(self._problem.grid, candidate.asked.call.constants)
        return lambda: variant[grid](**given)

    def _results(self, candidate: Candidate, variant: CompiledKernel) -> list[Any]:
        """What one run leaves in the arrays that it writes, then what it returns."""
        written = self._written(variant)
        for name, array in written.items():
            array[...] = self._problem.given[name]
        returned = self._launcher(candidate, variant)()
        return [*written.values(), *_several(returned)]

    def _written(self, variant: CompiledKernel) -> dict[str, Any]:
        """Copies of the arguments that the kernel writes, by name."""
        if self._copies is None:
            names = variant.image.written
            self._copies = {n: _copy(self._problem.given[n], n) for n in names}
        return self._copies

    def _wanted(self, variant: CompiledKernel) -> list[Any]:
        """What the reference makes of arguments that are what they were."""
        if self._want is None:
            assert self._reference is not None
            given = self._problem.given
            fresh = {id(given[n]): _copy(given[n], n) for n in self._written(variant)}
            args = [fresh.get(id(a), a) for a in self._args]
            kwargs = {n: fresh.get(id(a), a) for n, a in self._kwargs.items()}
            hint = "it is called as the kernel is, with the same arguments"
            returned = _several(answer_of("reference", hint, self._reference, *args, **kwargs))
            self._want = list(returned) or list(fresh.values())
        return self._want

    def _differs(self, results: Sequence[Any], wanted: Sequence[Any]) -> str:
        if len(results) != len(wanted):
            raise Unlike(
                f"the reference gives {len(wanted)} arrays, {self._problem.kernel.name} "
                f"{len(results)}",
                hint="return what the kernel writes, in the order of its parameters, and then what "
                "it returns; or write into the arguments as it does",
            )
        for result, want in zip(results, wanted):
            wrong, total = self._wrong(result, want)
            if wrong:
                return f"wrong: {wrong} of {total} elements differ"
        return ""

    def _wrong(self, result: Any, want: Any) -> tuple[int, int]:
        """How many elements of a result are wrong, of how many."""
        torch: Any = sys.modules.get("torch")
        tensors = torch is not None and all(isinstance(x, torch.Tensor) for x in (result, want))
        if tensors and want.shape == result.shape:
            a, e = result.double(), want.to(result.device).double()
            finite = e[torch.isfinite(e)]
            usual = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
            rtol, atol = self._tolerances(own_dtype(result.dtype), usual)
            near = ((a - e).abs() <= atol + rtol * e.abs()) | (a == e)
            near |= torch.isnan(a) & torch.isnan(e)
            return int((~near).sum()), near.numel()
        found = compare(result, want, 0.0, 0.0)
        e = found.expected
        finite = e[np.isfinite(e)].astype(np.float64)
        usual = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
        rtol, atol = self._tolerances(found.dtype, usual)
        found = compare(result, want, rtol, atol)
        return found.count, found.wrong.size

    def _tolerances(self, dtype: str, usual: float) -> tuple[float, float]:
        slack = SLACK.get(dtype, _OF_EIGHT_BITS if dtype.startswith("float8") else 0.0)
        if self._rtol is None and self._atol is None:
            return slack, slack * usual
        return self._rtol or 0.0, self._atol or 0.0


def _several(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _copy(array: Any, name: str) -> Any:
    """A copy of an array with the same strides. Raises LaunchError for what tilec cannot copy."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        strides = array.stride()
        made = torch.empty_strided(array.shape, strides, dtype=array.dtype, device=array.device)
        return made.copy_(array.detach())
    if isinstance(array, np.ndarray):
        return _like_numpy(array)
    message = f"{name} is written, and tilec cannot copy an array of type {type(array).__name__}"
    raise LaunchError(message, hint="tune with torch tensors or NumPy arrays")


def _like_numpy(array: Any) -> Any:
    if not array.size:
        return array.copy()
    reach = [(n - 1) * s for n, s in zip(array.shape, array.strides)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    memory = np.zeros(high - low + array.itemsize, np.uint8)
    made = np.ndarray(array.shape, array.dtype, memory, -low, array.strides)
    made[...] = array
    return made
