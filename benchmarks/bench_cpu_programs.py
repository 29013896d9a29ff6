"""Programs on the CPU, one thread: what a change of its code generator costs or gains.

    python -m benchmarks.bench_cpu_programs [NAME …] [--seconds 1] [--json programs.json]

Each row: microseconds of processor time per call, the least and the median of as many calls as fit
in the time (a machine that others use takes processor time too, but less of it than time).
"""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tilec
import tilec.language as T
from benchmarks.bench_cpu import matmul
from benchmarks.harness import save

M, N = T.dynamic("M, N")


@tilec.kernel
def softmax(X: T.Tensor((M, 512), "float32"), Y: T.Tensor((M, 512), "float32")):
    with T.Kernel(T.ceildiv(M, 16)) as b:
        x = T.alloc_fragment((16, 512), "float32")
        sums = T.alloc_fragment((16,), "float32")
        T.copy(X[b * 16, 0], x)
        for i in T.Parallel(16):
            most = T.float32(-1e30)
            for j in range(512):
                most = T.max(most, x[i, j])
            total = T.float32(0)
            for j in range(512):
                x[i, j] = T.exp(x[i, j] - most)
                total += x[i, j]
            sums[i] = total
        for i, j in T.Parallel(16, 512):
            x[i, j] = x[i, j] / sums[i]
        T.copy(x, Y[b * 16, 0])


@tilec.kernel
def silu(X: T.Tensor((M,), "float16"), Y: T.Tensor((M,), "float16")):
    with T.Kernel(T.ceildiv(M, 1024)) as b:
        for i in T.Parallel(1024):
            Y[b * 1024 + i] = X[b * 1024 + i] * T.sigmoid(X[b * 1024 + i])


@tilec.kernel
def scale(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    """Where N is less than 128, every block is at an edge."""
    with T.Kernel(T.ceildiv(N, 128), M) as (b, r):
        for i in T.Parallel(128):
            Y[r, b * 128 + i] = X[r, b * 128 + i] * 3 + 1


@tilec.kernel
def widen(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32)) as (bx, by):
        tile = T.alloc_shared((32, 32), "float16")
        T.copy(X[by * 32, bx * 32], tile)
        T.copy(tile, Y[by * 32, bx * 32])


@tilec.kernel
def transpose(X: T.Tensor((M, N), "float32"), Y: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64)) as (bx, by):
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X[by * 64, bx * 64], tile)
        for i, j in T.Parallel(64, 64):
            Y[bx * 64 + i, by * 64 + j] = tile[j, i]


@tilec.kernel
def reverse(X: T.Tensor((M,), "float32"), Y: T.Tensor((M,), "float32")):
    """By 256 threads that exchange what they have loaded."""
    with T.Kernel(T.ceildiv(M, 256), threads=256) as b:
        t = T.get_thread_binding()
        shared = T.alloc_shared((256,), "float32")
        shared[t] = X[b * 256 + t]
        Y[b * 256 + t] = shared[255 - t] + shared[t]


@tilec.kernel
def divide(X: T.Tensor((M,), "int32"), Y: T.Tensor((M,), "int32"), d: T.int32):
    with T.Kernel(T.ceildiv(M, 1024)) as b:
        for i in T.Parallel(1024):
            Y[b * 1024 + i] = X[b * 1024 + i] // 7 + X[b * 1024 + i] % d


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The kernel of each name, and what it is called with."""
    rng = np.random.default_rng(1)

    def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    numbers = rng.integers(-1000, 1000, 1 << 20).astype(np.int32)
    return {
        "product 512": (matmul, tuple(floats(512, 512) for _ in range(3))),
        "product 77x1001x333": (matmul, (floats(77, 333), floats(333, 1001), floats(77, 1001))),
        "softmax": (softmax, (floats(1024, 512), floats(1024, 512))),
        "silu": (silu, tuple(floats(1_000_003, dtype="float16") for _ in range(2))),
        "scale": (scale, tuple(floats(500, 1003) for _ in range(2))),
        "scale at edges": (scale, tuple(floats(20_000, 100) for _ in range(2))),
        "widen": (widen, (floats(1003, 1001, dtype="float16"), floats(1003, 1001))),
        "transpose": (transpose, tuple(floats(1000, 1000) for _ in range(2))),
        "reverse": (reverse, tuple(floats(1 << 20) for _ in range(2))),
        "divide": (divide, (numbers, np.zeros_like(numbers), 13)),
    }


def main() -> None:
    os.environ["TILEC_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", default="", help="write the figures here")
    options = parser.parse_args()
    rows = []
    for name, (kernel, args) in cases().items():
        if options.names and name not in options.names:
            continue
        times = measure(functools.partial(kernel, *args), options.seconds)
        rows.append({"program": name, "least": min(times), "median": statistics.median(times)})
        print(f"{name}: {rows[-1]['least']:.0f} us, median {rows[-1]['median']:.0f}")
    if options.json:
        save(options.json, "cpu_programs", rows)


def measure(call: Callable[[], Any], seconds: float) -> list[float]:
    """Microseconds of processor time of each call."""
    for _ in range(3):
        call()
    times: list[float] = []
    end = time.process_time() + seconds
    while (start := time.process_time()) < end:
        call()
        times.append((time.process_time() - start) * 1e6)
    return times


if __name__ == "__main__":
    main()
