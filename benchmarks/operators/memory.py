"""What memory bounds, in TB/s: sums of matrices, silu(a) * b, sums of rows and of all, copies,
transposes, softmax and norms of rows, each beside a device copy that moves as many bytes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

import tilec
from benchmarks import kernels, long_row_kernels, row_kernels
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUBLAS, TRITON, module_of, version
from benchmarks.products import random, tilec_candidate

TORCH, DEVICE_COPY, SHUFFLES = "torch", "device copy", "shuffles by hand"
ODD, EVEN, ALL = (8191, 8193), (8192, 8192), (1 << 30,)
SHORT, ANY, LONG = (16384, 1000), (16384, 4097), (1024, 65536)
_SHORT = {"float16": "fp16", "float32": "fp32"}
Shape = tuple[int, ...]


def _rows(exact: Callable[..., torch.Tensor], *names: str) -> Callable[..., torch.Tensor]:
    """The reference of what gives a row for each of the operands'."""
    return lambda t, rows: exact(*(t[name][rows].double() for name in names))


@dataclass(frozen=True)
class Form:
    """`peer(t)` gives the result in `launches` kernels; `reference(t, rows)` rows of it in float64.
    The result has the operands' dtype and shape, or what `out` makes of this, or, `by_row`, is as
    many float32 numbers."""

    name: str
    kernel: Callable[..., Any]
    operands: tuple[str, ...]
    peer: Callable[[Tensors], torch.Tensor]
    reference: Callable[[Tensors, torch.Tensor], torch.Tensor]
    launches: int = 1
    out: Callable[[Shape], Shape] = lambda shape: shape
    by_row: bool = False
    of_rows: bool = False  # the kernel is made for rows of a length
    of_odd: Callable[[str, int], Any] | None = None  # the one for rows that begin anywhere
    of_long: Callable[[str, int], Any] | None = None  # the one for rows that blocks share
    triton: Callable[[ModuleType], tuple[Any, tuple[Config, ...]]] | None = None
    by_hand: Callable[[str, int], Any] | None = None  # what threads do, said by the author


ADD = Form(
    "a + b",
    kernels.added,
    ("a", "b"),
    lambda t: torch.add(t["a"], t["b"], out=t["out"]),
    _rows(lambda a, b: a + b, "a", "b"),
    triton=lambda m: (lambda t, _: lambda: m.add(t["a"], t["b"], t["out"]), ({},)),
)
GATE = Form(
    "silu(a) * b",
    kernels.gated,
    ("a", "b"),
    lambda t: torch.mul(F.silu(t["a"]), t["b"], out=t["out"]),
    _rows(lambda a, b: F.silu(a) * b, "a", "b"),
    launches=2,
)
SUM = Form(
    "row sums",
    kernels.summed,
    ("a",),
    lambda t: torch.sum(t["a"], 1, dtype=torch.float32, out=t["out"]),
    _rows(lambda a: a.sum(1), "a"),
    out=lambda shape: shape[:1],
    by_row=True,
)
REDUCED = Form(
    "row sums, T.reduce_sum",
    kernels.reduced,
    ("a",),
    SUM.peer,
    SUM.reference,
    out=SUM.out,
    by_row=True,
    of_rows=True,
    by_hand=kernels.shuffled,
)
TOTAL = Form(
    "sum of all",
    kernels.total,
    ("a",),
    lambda t: torch.sum(t["a"], 0, dtype=torch.float32, keepdim=True, out=t["out"]),
    lambda t, _: t["a"].sum(0, dtype=torch.float64, keepdim=True),
    launches=2,
    out=lambda _: (1,),
    by_row=True,
)
COPY = Form(
    "copy",
    kernels.copied,
    ("a",),
    lambda t: t["out"].copy_(t["a"]),
    _rows(lambda a: a, "a"),
)
TRANSPOSE = Form(
    "transpose",
    kernels.transposed,
    ("a",),
    lambda t: t["out"].copy_(t["a"].t()),
    lambda t, rows: t["a"][:, rows].t().double(),
    out=lambda shape: shape[::-1],
    triton=lambda m: (
        lambda t, config: m.transpose(t["a"], t["out"], **config),
        m.TRANSPOSE_CONFIGS,
    ),
)
SOFTMAX = Form(
    "softmax",
    row_kernels.softmax,
    ("a",),
    lambda t: torch.softmax(t["a"], 1, out=t["out"]),
    _rows(lambda a: torch.softmax(a, 1), "a"),
    of_rows=True,
    of_odd=row_kernels.odd_softmax,
    of_long=long_row_kernels.softmax,
    triton=lambda m: (
        lambda t, config: m.softmax(t["a"], t["out"], **config),
        m.ROW_CONFIGS,
    ),
)
RMS_NORM = Form(
    "RMS norm",
    row_kernels.rms_norm,
    ("a",),
    lambda t: F.rms_norm(t["a"], t["a"].shape[1:], eps=row_kernels.RMS_EPSILON),
    _rows(lambda a: F.rms_norm(a, a.shape[1:], eps=row_kernels.RMS_EPSILON), "a"),
    of_rows=True,
    of_odd=row_kernels.odd_rms_norm,
    of_long=long_row_kernels.rms_norm,
    triton=lambda m: (
        lambda t, config: m.rms_norm(t["a"], t["out"], row_kernels.RMS_EPSILON, **config),
        m.ROW_CONFIGS,
    ),
)
LAYER_NORM = Form(
    "layer norm",
    row_kernels.layer_norm,
    ("a",),
    lambda t: F.layer_norm(t["a"], t["a"].shape[1:], eps=row_kernels.LAYER_EPSILON),
    _rows(lambda a: F.layer_norm(a, a.shape[1:], eps=row_kernels.LAYER_EPSILON), "a"),
    of_rows=True,
    of_odd=row_kernels.odd_layer_norm,
    of_long=long_row_kernels.layer_norm,
    triton=lambda m: (
        lambda t, config: m.layer_norm(t["a"], t["out"], row_kernels.LAYER_EPSILON, **config),
        m.ROW_CONFIGS,
    ),
)


def cases() -> list[Case]:
    return [
        case(ADD, EVEN, "float16"),
        case(ADD, ODD, "float16"),
        case(ADD, ODD, "float32"),
        case(GATE, EVEN, "float16"),
        case(SUM, EVEN, "float16"),
        case(SUM, EVEN, "float32"),
        case(REDUCED, EVEN, "float16"),
        case(TOTAL, ALL, "float16"),
        case(TOTAL, ALL, "float32"),
        case(TRANSPOSE, EVEN, "float16"),
        *(
            case(f, s, "float16")
            for f in (COPY, SOFTMAX, RMS_NORM, LAYER_NORM)
            for s in (EVEN, SHORT, ANY, LONG)
        ),
    ]


VECTOR = 8  # elements of 16 bits
PIECE = 128 << 20  # bytes
LONGEST = 32768  # the longest row that a block holds in registers


def _program(
    f: Form, shape: Shape, dtype: str, out: Any
) -> tuple[Any, list[Any], Callable[[Tensors], tuple[Any, ...]]]:
    """The kernel, what it is compiled for, and its arguments."""
    names = (*f.operands, "out")
    specs = [*[tilec.spec(shape, dtype)] * len(f.operands), out]
    rows, length = shape[0], shape[-1]
    if f.of_odd is not None and length % VECTOR:
        flat = [tilec.spec((rows * length,), dtype)] * 2
        return f.of_odd(dtype, length), flat, lambda t: tuple(t[x].view(-1) for x in names)
    if f.of_long is not None and length > LONGEST:
        parts = (rows * long_row_kernels.PARTS, 2)
        scratch = functools.cache(lambda device: torch.empty(parts, device=device))
        return (
            f.of_long(dtype, length),
            [*specs, tilec.spec(parts, "float32")],
            lambda t: (*(t[x] for x in names), scratch(t["out"].device)),
        )
    lengths = (length,) if f.of_rows else ()
    return f.kernel(dtype, *lengths), specs, lambda t: tuple(t[x] for x in names)


def case(f: Form, shape: Shape, dtype: str) -> Case:
    kind = getattr(torch, dtype)
    out_shape, out_dtype = f.out(shape), "float32" if f.by_row else dtype
    out_kind = getattr(torch, out_dtype)
    out = tilec.spec(out_shape, out_dtype)
    name = f"{_SHORT[dtype]} {f.name} {'x'.join(map(str, shape))}"
    moved = len(f.operands) * prod(shape) * kind.itemsize + prod(out_shape) * out_kind.itemsize

    def make(device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(shape[-1])
        made = {name: random(shape, kind, device, generator) for name in f.operands}
        return {**made, "out": torch.empty(out_shape, dtype=out_kind, device=device)}

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        return lambda: f.peer(t)

    def candidates() -> list[Candidate]:
        found = [
            tilec_candidate(*_program(f, shape, dtype, out)),
            Candidate(TORCH, lambda _: version(CUBLAS), bind, launches=f.launches),
        ]
        if f.by_hand is not None:
            specs = [tilec.spec(shape, dtype), out]
            kernel = f.by_hand(dtype, shape[1])
            found.append(
                tilec_candidate(kernel, specs, lambda t: (t["a"], t["out"]), name=SHUFFLES)
            )
        return [*found, *_triton(f, name), device_copy(moved)]

    return Case(
        operator="memory",
        name=name,
        facts={"shape": [*shape], "dtype": dtype},
        work=float(moved),
        bytes=moved,
        tolerance=1e-3,
        make=make,
        reference=f.reference,
        candidates=candidates,
        baseline=TORCH,
        seed=shape[-1],
        sets=2,
    )


def device_copy(moved: int) -> Candidate:
    """What the device takes to read and write so many bytes together, as its driver copies: at most
    `PIECE` at a time (1 GB to another address 1 GB away takes 1.5 times as long on an H200)."""
    times = -(-moved // 2 // PIECE)

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        source = torch.empty(moved // 2 // times, dtype=torch.uint8, device=t["out"].device)
        dest = torch.empty_like(source)

        def call() -> torch.Tensor:
            for _ in range(times):
                dest.copy_(source)
            return dest

        return call

    return Candidate(DEVICE_COPY, lambda _: version(CUBLAS), bind, launches=times, yardstick=True)


def _triton(f: Form, name: str) -> list[Candidate]:
    """Triton, where it is installed and has such a kernel here."""
    if f.triton is None or module_of(TRITON) is None:
        return []
    module = "triton_add" if f is ADD else "triton_rows"
    bound, configs = f.triton(importlib.import_module(f"benchmarks.peers.{module}"))

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        run = bound(t, config)

        def call() -> torch.Tensor:
            run()
            return t["out"]

        return call

    def identity(config: Config) -> str:
        return f"{version(TRITON)} {dict(config)}"

    return [Candidate(TRITON, identity, bind, configs, tuned_as=f"{TRITON} {name}")]
