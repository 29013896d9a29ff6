"""fp16 products of many matrices at once against torch.bmm, NN."""

from __future__ import annotations

from collections.abc import Callable

import torch

import tilec
from benchmarks import kernels
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUBLAS, version
from benchmarks.products import random, tilec_candidate

SHAPES = (  # batch, M, N, K
    (16, 2048, 2048, 2048),
    (32, 1024, 1024, 4096),
    (64, 512, 512, 512),
    (128, 128, 128, 4096),
    (256, 1024, 128, 128),
)


def cases() -> list[Case]:
    return [case(*shape, priority=i) for i, shape in enumerate(SHAPES)]


def case(batch: int, m: int, n: int, k: int, priority: int) -> Case:
    shapes = (batch, m, k), (batch, k, n), (batch, m, n)

    def make(device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(batch + m)
        a, b = (random(s, torch.float16, device, generator) for s in shapes[:2])
        # As a result: rows of the first matrix, then of the second, …
        out = torch.empty(batch * m, n, dtype=torch.float16, device=device)
        return {"a": a, "b": b, "out": out}

    def reference(t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        a, b = t["a"].flatten(0, 1)[rows].double(), t["b"]
        return torch.stack([row @ b[r // m].double() for row, r in zip(a, rows.tolist())])

    def candidates() -> list[Candidate]:
        ours = tilec_candidate(
            kernels.batched("float16"),
            [tilec.spec(s, "float16") for s in shapes],
            lambda t: (t["a"], t["b"], t["out"].view(shapes[2])),
        )
        return [ours, Candidate(CUBLAS, lambda _: version(CUBLAS), bind)]

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        out = t["out"].view(shapes[2])

        def call() -> torch.Tensor:
            torch.bmm(t["a"], t["b"], out=out)
            return t["out"]

        return call

    return Case(
        operator="batched",
        name=f"fp16 NN {batch} of {m}x{n}x{k}",
        facts={"shape": [batch, m, n, k], "kind": "NN", "dtype": "float16"},
        work=2.0 * batch * m * n * k,
        bytes=2 * batch * (m * k + k * n + m * n),
        tolerance=1e-3,
        make=make,
        reference=reference,
        candidates=candidates,
        priority=priority,
        seed=m,
    )
