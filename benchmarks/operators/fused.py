"""fp16 linear layers with what follows them (NT) against cuBLAS and torch's element-wise operators,
each in place, in a CUDA graph; and against torch.addmm, where cuBLAS adds the bias or residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import tilec
from benchmarks import kernels
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUBLAS, version
from benchmarks.products import random, tilec_candidate

ADDMM = "addmm"

SHAPES = ((4096, 4096, 4096), (4096, 14336, 4096), (1024, 14336, 4096), (8192, 8192, 8192))


@dataclass(frozen=True)
class Epilogue:
    """`extra`: the tensors besides A and B with their shapes, from M, N and K. `exact(x, t, rows)`:
    rows of the result in float64 from those of the product. `peer(t)` writes "out" in `launches`
    kernels; `addmm(t)`, if there is one, in fewer."""

    name: str
    kernel: Callable[[str], Any]
    extra: Callable[[int, int, int], dict[str, tuple[int, ...]]]
    exact: Callable[[torch.Tensor, Tensors, torch.Tensor], torch.Tensor]
    peer: Callable[[Tensors], object]
    launches: int = 2
    products: int = 1
    addmm: Callable[[Tensors], object] | None = None


def _bias(m: int, n: int, k: int) -> dict[str, tuple[int, ...]]:
    return {"bias": (n,)}


def _product(t: Tensors) -> torch.Tensor:
    return torch.matmul(t["a"], t["b"].t(), out=t["out"])


def _added(t: Tensors, what: str) -> torch.Tensor:
    return torch.addmm(t[what], t["a"], t["b"].t(), out=t["out"])


def _gelu(x: torch.Tensor) -> None:
    torch.ops.aten.gelu.out(x, approximate="tanh", out=x)


def _swiglu(t: Tensors) -> None:
    torch.matmul(t["a"], t["b"].t(), out=t["out"])
    F.silu(t["out"], inplace=True)
    t["out"].mul_(torch.matmul(t["a"], t["up"].t()))


EPILOGUES = (
    Epilogue(
        "bias + relu",
        lambda dtype: kernels.linear(dtype, "relu"),
        _bias,
        lambda x, t, rows: (x + t["bias"].double()).relu(),
        lambda t: _product(t).add_(t["bias"]).relu_(),
        launches=3,
        addmm=lambda t: _added(t, "bias").relu_(),
    ),
    Epilogue(
        "bias + gelu",
        lambda dtype: kernels.linear(dtype, "gelu"),
        _bias,
        lambda x, t, rows: F.gelu(x + t["bias"].double(), approximate="tanh"),
        lambda t: _gelu(_product(t).add_(t["bias"])),
        launches=3,
        addmm=lambda t: _gelu(_added(t, "bias")),
    ),
    Epilogue(
        "residual",
        kernels.residual,
        lambda m, n, k: {"residual": (m, n)},
        lambda x, t, rows: x + t["residual"][rows].double(),
        lambda t: _product(t).add_(t["residual"]),
        addmm=lambda t: _added(t, "residual"),
    ),
    Epilogue(
        "SwiGLU",
        kernels.swiglu,
        lambda m, n, k: {"up": (n, k)},
        lambda x, t, rows: F.silu(x) * (t["a"][rows].double() @ t["up"].double().t()),
        _swiglu,
        launches=4,
        products=2,
    ),
)


def cases() -> list[Case]:
    return [case(e, *shape, priority=i) for i, shape in enumerate(SHAPES) for e in EPILOGUES]


def case(e: Epilogue, m: int, n: int, k: int, priority: int) -> Case:
    shapes: dict[str, tuple[int, ...]] = {"a": (m, k), "b": (n, k), **e.extra(m, n, k)}

    def make(device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(m + n + k)
        made = {
            name: random(shape, torch.float16, device, generator) for name, shape in shapes.items()
        }
        for name in ("b", "up"):  # as weights are: the products are of size 1
            if name in made:
                made[name].mul_(k**-0.5)
        return {**made, "out": torch.empty(m, n, dtype=torch.float16, device=device)}

    def reference(t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        return e.exact(t["a"][rows].double() @ t["b"].double().t(), t, rows)

    def peer(name: str, run: Callable[[Tensors], object], launches: int) -> Candidate:
        def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
            def call() -> torch.Tensor:
                run(t)
                return t["out"]

            return call

        return Candidate(name, lambda _: f"{version(CUBLAS)}, {name}", bind, launches=launches)

    def candidates() -> list[Candidate]:
        ours = tilec_candidate(
            e.kernel("float16"),
            [tilec.spec(s, "float16") for s in (*shapes.values(), (m, n))],
            lambda t: tuple(t[name] for name in (*shapes, "out")),
        )
        found = [ours, peer(CUBLAS, e.peer, e.launches)]
        return found if e.addmm is None else [*found, peer(ADDMM, e.addmm, 2)]

    elements = sum(torch.Size(s).numel() for s in shapes.values()) + m * n
    return Case(
        operator="fused",
        name=f"fp16 NT {m}x{n}x{k} {e.name}",
        facts={"shape": [m, n, k], "kind": "NT", "dtype": "float16", "epilogue": e.name},
        work=2.0 * m * n * k * e.products,
        bytes=2 * elements,
        tolerance=2e-3,
        make=make,
        reference=reference,
        candidates=candidates,
        priority=priority,
        seed=m,
    )
