"""fp16 products of groups of uneven sizes (NT, sizes on the device) against a loop of torch.matmul
in a CUDA graph."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable
from itertools import accumulate

import torch

import tilec
from benchmarks import kernels
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUBLAS, version
from benchmarks.products import random, tilec_candidate

SHAPES = (  # groups, rows of all together, N, K
    (8, 4096, 4096, 4096),
    (64, 4096, 4096, 4096),
    (8, 16384, 4096, 4096),
    (64, 16384, 4096, 4096),
    (8, 8192, 4096, 7168),
    (64, 8192, 4096, 2048),
)


def cases() -> list[Case]:
    return [case(*shape, priority=i) for i, shape in enumerate(SHAPES)]


def uneven(groups: int, rows: int) -> list[int]:
    """Where each group starts, and the end: random sizes, the largest several times the mean, some
    groups empty where there are many."""
    rng = python_random.Random(groups * 7 + rows)
    weights = [rng.expovariate(1.0) ** 1.5 for _ in range(groups)]
    for i in range(0, groups if groups > 16 else 0, 13):
        weights[i] = 0.0
    sums = list(accumulate(weights, initial=0.0))
    return [round(s / sums[-1] * rows) for s in sums]


def case(groups: int, m: int, n: int, k: int, priority: int) -> Case:
    ends = uneven(groups, m)

    def make(device: str) -> Tensors:
        generator = torch.Generator(device).manual_seed(groups + m)
        return {
            "a": random((m, k), torch.float16, device, generator),
            "b": random((groups, n, k), torch.float16, device, generator),
            "offsets": torch.tensor(ends, dtype=torch.int32, device=device),
            "out": torch.empty(m, n, dtype=torch.float16, device=device),
        }

    def reference(t: Tensors, rows: torch.Tensor) -> torch.Tensor:
        group = torch.bucketize(rows.cpu(), torch.tensor(ends[1:]), right=True).tolist()
        a = t["a"][rows].double()
        return torch.stack([t["b"][g].double() @ row for row, g in zip(a, group)])

    def loop(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        parts = [
            (t["a"][first:end], t["b"][g].t(), t["out"][first:end])
            for g, (first, end) in enumerate(zip(ends, ends[1:]))
            if end > first
        ]

        def call() -> torch.Tensor:
            for a, b, out in parts:
                torch.matmul(a, b, out=out)
            return t["out"]

        return call

    def candidates() -> list[Candidate]:
        specs = [
            tilec.spec((m, k), "float16"),
            tilec.spec((groups, n, k), "float16"),
            tilec.spec((groups + 1,), "int32"),
            tilec.spec((m, n), "float16"),
        ]
        ours = tilec_candidate(
            kernels.grouped("float16"),
            specs,
            lambda t: (t["a"], t["b"], t["offsets"], t["out"]),
        )
        peer = Candidate(CUBLAS, lambda _: version(CUBLAS), loop, launches=groups)
        return [ours, peer]

    return Case(
        operator="grouped",
        name=f"fp16 NT {groups} groups {m}x{n}x{k}",
        facts={"shape": [groups, m, n, k], "kind": "NT", "dtype": "float16", "offsets": ends},
        work=2.0 * m * n * k,
        bytes=2 * (m * k + groups * n * k + m * n),
        tolerance=1e-3,
        make=make,
        reference=reference,
        candidates=candidates,
        priority=priority,
        seed=m,
    )
