"""float32 matrix products on the CPU against NumPy, with as many threads for both.

    python -m benchmarks.bench_cpu [--threads 2] [--rounds 30] [--json results/cpu.json]

The code is what LLVM makes of the kernel: no BLAS, no library of micro-kernels. Each row: GFLOP/s
of both (medians of shuffled rounds), their ratio, the error of both against float64 relative to the
largest element, and the time from the first call to machine code.
"""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tilec
import tilec.language as T
from benchmarks.harness import save
from benchmarks.timing import spread

SHAPES = [(512, 512, 512), (500, 500, 500), (1024, 1024, 1024), (1024, 256, 2048), (77, 1001, 333)]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def matmul(
    A: T.Tensor((M, K), "float32"),
    B: T.Tensor((K, N), "float32"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr = 128,
    BN: T.constexpr = 128,
    BK: T.constexpr = 64,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float32")
        B_s = T.alloc_shared((BK, BN), "float32")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", default="", help="write the figures here")
    options = parser.parse_args()
    if any(os.environ.get(v) != str(options.threads) for v in _THREAD_VARIABLES):
        # BLAS libraries read these when they are loaded: start again with them set.
        wanted = dict.fromkeys((*_THREAD_VARIABLES, "TILEC_NUM_THREADS"), str(options.threads))
        again = [sys.executable, "-m", "benchmarks.bench_cpu", *sys.argv[1:]]
        sys.exit(subprocess.run(again, env={**os.environ, **wanted}).returncode)
    rows = [measure(shape, options.rounds) for shape in SHAPES]
    for row in rows:
        print(
            f"{row['m']}x{row['n']}x{row['k']}: tilec {row['tilec']:.0f}, "
            f"NumPy {row['numpy']:.0f} GFLOP/s, ratio {row['ratio']:.2f}; relative error "
            f"{row['error']:.1e} and {row['numpy_error']:.1e}; first call {row['first_ms']:.0f} ms"
        )
    if options.json:
        save(options.json, "cpu", [{"threads": options.threads, **row} for row in rows])


def measure(shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """One row of the table."""
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a = rng.standard_normal((m, k), np.float32)
    b = rng.standard_normal((k, n), np.float32)
    ours, theirs = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
    start = time.perf_counter()
    matmul(a, b, ours)
    first = time.perf_counter() - start
    samples = interleaved(
        {"tilec": lambda: matmul(a, b, ours), "numpy": lambda: np.matmul(a, b, out=theirs)}, rounds
    )
    exact = a.astype(np.float64) @ b.astype(np.float64)
    medians = {name: spread(times)["median"] for name, times in samples.items()}
    work = 2e-9 * m * n * k
    return {
        "m": m,
        "n": n,
        "k": k,
        "tilec": work / medians["tilec"],
        "numpy": work / medians["numpy"],
        "ratio": medians["numpy"] / medians["tilec"],
        "error": float(np.abs(ours - exact).max() / np.abs(exact).max()),
        "numpy_error": float(np.abs(theirs - exact).max() / np.abs(exact).max()),
        "first_ms": first * 1e3,
    }


def interleaved(candidates: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of each candidate: in every round each runs a few times, in a new random
    order, so that clock and neighbours are shared."""
    names = list(candidates)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 2):
        random.shuffle(names)
        for name in names:
            call, repeat = candidates[name], 5
            call()  # brings back the caches and threads that the other candidate had
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            if number >= 2:
                samples[name].append((time.perf_counter() - start) / repeat)
    return samples


if __name__ == "__main__":
    main()
