"""Whether a candidate's result is right: against float64, on sampled rows, into poisoned memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.case import Case, Tensors

ROWS = 64


def sampled_rows(count: int, seed: int) -> torch.Tensor:
    """The first row, the last and random others, ascending: at most ROWS of `count`."""
    generator = torch.Generator().manual_seed(seed)
    picked = torch.randperm(count, generator=generator)[:ROWS]
    ends = (0, count - 1)
    return torch.tensor(sorted({*picked.tolist(), *ends}))


def poison(out: torch.Tensor) -> None:
    """Fill with what no right result contains: NaN, or the smallest integer."""
    if out.dtype.is_floating_point:
        out.fill_(float("nan"))
    else:
        out.fill_(torch.iinfo(out.dtype).min)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative Frobenius error; NaN if `got` holds one, 0 for two zeros."""
    if got.shape != want.shape:
        raise ValueError(f"a result of shape {tuple(got.shape)}, expected {tuple(want.shape)}")
    difference = float((got.double() - want).norm())
    size = float(want.norm())
    return difference / size if size else difference


def checker(case: Case, tensors: Tensors) -> Callable[[Callable[[], torch.Tensor]], float]:
    """A function that gives the relative error of a call on `tensors`; the reference is made once.

    "out" is poisoned before each call, so what a candidate leaves out is never another's result.
    """
    out = tensors["out"]
    rows = sampled_rows(out.shape[0], case.seed).to(out.device)
    want = case.reference(tensors, rows)

    def error(call: Callable[[], torch.Tensor]) -> float:
        poison(out)
        return relative_error(call()[rows], want)

    return error
