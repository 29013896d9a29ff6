"""tilec's own choice of tile and schedule against every one of a list, on 12 shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tilec
from benchmarks import kernels
from benchmarks.case import Candidate, Case
from benchmarks.operators.gemm import PAPER
from benchmarks.products import Product, ours, product_case, tilec_candidate
from benchmarks.store import BEST

SHAPES = (
    *((*shape, "NN") for shape in PAPER),
    (4096, 4096, 4096, "NN"),
    (1024, 1024, 1024, "NN"),
    (4000, 3000, 2008, "NN"),
    (2048, 2048, 2048, "NT"),
    (64, 4096, 4096, "NT"),
    (256, 14336, 4096, "NT"),
    (1024, 4096, 14336, "NT"),
    (4096, 14336, 4096, "NT"),
)

ALONE: dict[str, Any] = {"cluster": (1, 1), "split": 1}
COOPERATIVE: dict[str, Any] = {"persistent": True, "consumers": "cooperative", **ALONE}
PING_PONG: dict[str, Any] = {"consumers": "pingpong", **ALONE}
# BM, BN, threads, keywords of T.annotate_schedule
TRIALS: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (128, 256, 256, COOPERATIVE),
    (128, 256, 256, {**COOPERATIVE, "cluster": (1, 2)}),
    (128, 256, 256, {**COOPERATIVE, "cluster": (2, 1)}),
    (128, 256, 256, {**COOPERATIVE, "raster_group": 16}),
    (128, 256, 256, {"persistent": False, **ALONE}),
    (256, 192, 256, COOPERATIVE),
    (256, 128, 256, COOPERATIVE),
    (128, 192, 256, COOPERATIVE),
    (128, 192, 128, PING_PONG),
    (128, 128, 128, PING_PONG),
    (64, 256, 128, PING_PONG),
    (128, 128, 256, COOPERATIVE),
    (128, 128, 256, {**ALONE, "split": 2}),
    (64, 256, 128, COOPERATIVE),
    (64, 128, 128, {"persistent": False, **ALONE}),
    (64, 128, 128, {**ALONE, "split": 2}),
    (64, 128, 128, {**ALONE, "split": 4}),
    (64, 64, 128, {"persistent": False, **ALONE}),
    (64, 64, 128, {**ALONE, "split": 4}),
)


def cases() -> list[Case]:
    return [case(Product(m, n, k, kind), i) for i, (m, n, k, kind) in enumerate(SHAPES)]


def case(p: Product, priority: int) -> Case:
    trials = [t for t in TRIALS if p.m > 64 or t[0] == 64]
    return replace(
        product_case("schedules", p, priority),
        baseline=BEST,
        candidates=lambda: [ours(p), *(trial(p, *t) for t in trials)],
    )


def trial(p: Product, bm: int, bn: int, threads: int, schedule: dict[str, Any]) -> Candidate:
    """tilec with everything said."""
    words = ", ".join(f"{k}={v}" for k, v in schedule.items() if ALONE.get(k) != v)
    shapes = (*p.stored, (p.m, p.n))
    return tilec_candidate(
        kernels.scheduled(p.dtype, p.tb, tuple(schedule.items()), threads),
        [tilec.spec(s, p.dtype) for s in shapes],
        lambda t: (t["a"], t["b"], t["out"]),
        {"BM": bm, "BN": bn},
        name=f"{bm}x{bn}, {threads} threads, {words}",
    )
