"""One float16 row times packed weights of four bits: the thread-level listing of TileLang's paper,
beside TileLang's own and cuBLAS on weights unpacked to float16."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import tilec
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.peers import CUBLAS, TILELANG, module_of, version
from benchmarks.products import code_hash, random, schedule_of
from benchmarks.store import OURS

SHAPES = ((1024, 8192), (8192, 8192), (28672, 8192), (8192, 28672))  # N, K
CONFIGS: tuple[Config, ...] = tuple(
    {"n_partition": rows, "reduce_thread": threads}
    for threads, most in ((8, 32), (16, 16), (32, 16), (64, 8), (128, 4), (256, 2))
    for rows in (1, 2, 4, 8, 16, 32)
    if 64 <= rows * threads <= 512 and rows <= most
)
"""What the listing leaves open: rows of a block, and threads of a row."""

_LISTING = Path(__file__).parents[2] / "tests" / "seeds" / "tilelang_dequantize_gemv.py"
_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # of the elements, the nibble of 32 bits that each is


def cases() -> list[Case]:
    return [case(n, k, priority) for priority, (n, k) in enumerate(SHAPES)]


@functools.cache
def listing() -> ModuleType:
    """TileLang's program, of which decorator and imports are tilec's."""
    spec = importlib.util.spec_from_file_location(_LISTING.stem, _LISTING)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def kernel(n: int, k: int, n_partition: int, reduce_thread: int) -> Any:
    return listing().dequantize_gemv(1, n, k, n_partition=n_partition, reduce_thread=reduce_thread)


def decoded(packed: torch.Tensor) -> torch.Tensor:
    """The weights, (N, K) float16, of (N, K / 2) bytes."""
    words = packed.view(torch.int32)
    parts = [(words >> 4 * nibble & 15).to(torch.float16) for nibble in _ORDER]
    return torch.stack(parts, -1).view(packed.shape[0], -1)


def make(n: int, k: int, device: str) -> Tensors:
    generator = torch.Generator(device).manual_seed(n + k)
    packed = torch.randint(-128, 128, (n, k // 2), dtype=torch.int8, device=device,
                           generator=generator)  # fmt: skip
    return {
        "a": random((1, k), torch.float16, device, generator),
        "packed": packed,
        "weights": decoded(packed),
        "out": torch.empty((1, n), dtype=torch.float16, device=device),
    }


def case(n: int, k: int, priority: int) -> Case:
    return Case(
        operator="w4a16",
        name=f"W4A16 1x{n}x{k}",
        facts={"shape": [1, n, k], "dtype": "uint4"},
        work=2.0 * n * k,
        bytes=n * k // 2 + 2 * (n + k),
        tolerance=1e-3,
        make=functools.partial(make, n, k),
        reference=lambda t, rows: t["a"][rows].double() @ t["weights"].double().T,
        candidates=lambda: [c for c in (ours(n, k), tilelang(n, k), cublas()) if c],
        baseline=TILELANG,
        priority=priority,
        seed=n + k,
    )


def ours(n: int, k: int) -> Candidate:
    specs = [tilec.spec((1, k), "float16"), tilec.spec((n, k // 2), "int8")]
    specs.append(tilec.spec((1, n), "float16"))

    def compiled(config: Config) -> Any:
        return kernel(n, k, **config).compile(*specs)

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        made = kernel(n, k, **config)

        def call() -> torch.Tensor:
            made(t["a"], t["packed"], t["out"])
            return t["out"]

        return call

    return Candidate(
        OURS,
        lambda config: code_hash(compiled(config)),
        bind,
        CONFIGS,
        tuned_as=f"{OURS} W4A16 1x{n}x{k}",
        prepare=compiled,
        on_disk=True,
        about=lambda config: schedule_of(compiled(config)),
    )


def tilelang(n: int, k: int) -> Candidate | None:
    """The same listing; None where TileLang is not installed."""
    if module_of(TILELANG) is None:
        return None
    module = importlib.import_module("benchmarks.peers.tilelang_gemv")
    return Candidate(
        TILELANG,
        lambda config: f"{version(TILELANG)} {dict(config)}",
        lambda t, config: module.bind(t["a"], t["packed"], t["out"], dict(config)),
        CONFIGS,
        tuned_as=f"{TILELANG} W4A16 1x{n}x{k}",
        prepare=lambda config: module.compiled(n, k, **config),
    )


def cublas() -> Candidate:
    """torch.matmul with the weights in float16."""

    def bind(t: Tensors, config: Config) -> Callable[[], torch.Tensor]:
        return lambda: torch.matmul(t["a"], t["weights"].t(), out=t["out"])

    return Candidate(CUBLAS, lambda _: version(CUBLAS), bind)
