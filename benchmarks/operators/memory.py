"""What memory bounds, in TB/s: sums of matrices whose rows are odd, silu(a) * b, sums of rows,
copies, softmax and RMS norm of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

import tilec
from benchmarks import kernels, row_kernels
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUBLAS, version
from benchmarks.products import random, tilec_candidate

TORCH = "torch"
ODD, EVEN = (8191, 8193), (8192, 8192)
_SHORT = {"float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Form:
    """`peer(t)` gives the result in `launches` kernels; `exact` gives rows of it from those of the
    `operands`. The result has the operands' shape and dtype, or, `by_row`, a float32 number for
    each row."""

    name: str
    kernel: Callable[[str], Any]
    operands: tuple[str, ...]
    peer: Callable[[Tensors], torch.Tensor]
    exact: Callable[..., torch.Tensor]
    launches: int = 1
    by_row: bool = False
    of_rows: bool = False  # the kernel is made for rows of a length
    of_odd: Callable[[str, int], Any] | None = None  # the one for rows that begin anywhere
    of_long: Callable[[str, int], Any] | None = None  # the one for rows that blocks share


ADD = Form(
    "a + b",
    kernels.added,
    ("a", "b"),
    lambda t: torch.add(t["a"], t["b"], out=t["out"]),
    lambda a, b: a + b,
)
GATE = Form(
    "silu(a) * b",
    kernels.gated,
    ("a", "b"),
    lambda t: torch.mul(F.silu(t["a"]), t["b"], out=t["out"]),
    lambda a, b: F.silu(a) * b,
    launches=2,
)
SUM = Form(
    "row sums",
    kernels.summed,
    ("a",),
    lambda t: torch.sum(t["a"], 1, dtype=torch.float32, out=t["out"]),
    lambda a: a.sum(1),
    by_row=True,
)
COPY = Form(
    "copy",
    kernels.copied,
    ("a",),
    lambda t: t["out"].copy_(t["a"]),
    lambda a: a,
)
SOFTMAX = Form(
    "softmax",
    row_kernels.softmax,
    ("a",),
    lambda t: torch.softmax(t["a"], 1, out=t["out"]),
    lambda a: torch.softmax(a, 1),
    of_rows=True,
    of_odd=row_kernels.odd_softmax,
    of_long=row_kernels.long_softmax,
)
RMS_NORM = Form(
    "RMS norm",
    row_kernels.rms_norm,
    ("a",),
    lambda t: F.rms_norm(t["a"], t["a"].shape[1:], eps=row_kernels.RMS_EPSILON),
    lambda a: F.rms_norm(a, a.shape[1:], eps=row_kernels.RMS_EPSILON),
    of_rows=True,
    of_odd=row_kernels.odd_rms_norm,
)


def cases() -> list[Case]:
    return [
        case(ADD, ODD, "float16"),
        case(ADD, ODD, "float32"),
        case(GATE, EVEN, "float16"),
        case(SUM, EVEN, "float16"),
        case(SUM, EVEN, "float32"),
        *(
            case(f, s, "float16")
            for f in (COPY, SOFTMAX, RMS_NORM)
            for s in (EVEN, (16384, 1000), (16384, 4097))
        ),
        *(case(f, (1024, 65536), "float16") for f in (COPY, SOFTMAX)),
    ]


VECTOR = 8  # elements of 16 bits
LONG = 32768  # the longest row that a block holds


def _program(
    f: Form, shape: tuple[int, int], dtype: str, out_shape: tuple[int, ...], out_dtype: str
) -> tuple[Any, list[Any], Callable[[Tensors], tuple[Any, ...]]]:
    """The kernel, what it is compiled for, and its arguments."""
    names = (*f.operands, "out")
    specs = [*[tilec.spec(shape, dtype)] * len(f.operands), tilec.spec(out_shape, out_dtype)]
    rows, length = shape
    if f.of_odd is not None and length % VECTOR:
        flat = [tilec.spec((rows * length,), dtype)] * 2
        kernel = f.of_odd(dtype, _up(length + VECTOR - 1, 192 * 24))
        return kernel, [*flat, length], lambda t: (*(t[x].view(-1) for x in names), length)
    if f.of_long is not None and length > LONG:
        parts = (rows * row_kernels.PARTS, 2)
        scratch = functools.cache(lambda device: torch.empty(parts, device=device))
        return (
            f.of_long(dtype, length // row_kernels.PARTS),
            [*specs, tilec.spec(parts, "float32")],
            lambda t: (*(t[x] for x in names), scratch(t["out"].device)),
        )
    widths = (1 << (length - 1).bit_length(),) if f.of_rows else ()
    return f.kernel(dtype, *widths), specs, lambda t: tuple(t[x] for x in names)


def _up(n: int, by: int) -> int:
    return -(-n // by) * by


def case(f: Form, shape: tuple[int, int], dtype: str) -> Case:
    kind = getattr(torch, dtype)
    out_shape, out_dtype = (shape[:1], "float32") if f.by_row else (shape, dtype)
    out_kind = getattr(torch, out_dtype)

    def make(device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(shape[1])
        made = {name: random(shape, kind, device, generator) for name in f.operands}
        return {**made, "out": torch.empty(out_shape, dtype=out_kind, device=device)}

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        return lambda: f.peer(t)

    def candidates() -> list[Candidate]:
        ours = tilec_candidate(*_program(f, shape, dtype, out_shape, out_dtype))
        return [ours, Candidate(TORCH, lambda _: version(CUBLAS), bind, launches=f.launches)]

    moved = len(f.operands) * prod(shape) * kind.itemsize + prod(out_shape) * out_kind.itemsize
    return Case(
        operator="memory",
        name=f"{_SHORT[dtype]} {f.name} {shape[0]}x{shape[1]}",
        facts={"shape": [*shape], "dtype": dtype},
        work=float(moved),
        bytes=moved,
        tolerance=1e-3,
        make=make,
        reference=lambda t, rows: f.exact(*(t[name][rows].double() for name in f.operands)),
        candidates=candidates,
        baseline=TORCH,
        seed=shape[1],
        sets=2,
    )
