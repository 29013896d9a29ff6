"""CPU time of a launch: what a call of a compiled kernel costs before the GPU does anything.

    python -m benchmarks.bench_launch [--json results/launch.json]

On an NVIDIA GPU: an empty kernel with one tensor, and a small matrix product with three (on
sm_90a: three tensor maps); beside each, the driver's own call with the same prepared arguments,
and torch's `add_` and `matmul(out=)`. Microseconds per call, median of shuffled rounds; a round
is short enough that the driver's queue never fills. Without a GPU the same launch path is timed
with a driver's entry that returns at once.
"""

# mypy: disable-error-code="valid-type,assignment,no-untyped-def,no-untyped-call,untyped-decorator"
# (the annotations of a kernel are its own)
from __future__ import annotations

import argparse
import ctypes
import functools
import random
import time
from collections.abc import Callable
from typing import Any

import torch

import tilec
import tilec.language as T
from benchmarks.harness import save
from benchmarks.kernels import product
from benchmarks.timing import spread

N = T.dynamic("N")
CALLS = 200  # per round; the driver queues about a thousand launches
ROUNDS = 60

Candidates = dict[str, Callable[[], Any]]


@tilec.kernel
def empty_kernel(A: T.Tensor((N,), "float16")):
    with T.Kernel(1, threads=128):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", default="", help="write the figures here")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    rows = []
    for name, samples in timed(candidates("cuda" if on_gpu else "cpu"), on_gpu).items():
        figure = spread(samples)
        rows.append({"what": name, "unit": "us per call", **figure})
        print(f"{figure['median']:7.2f} us  {name}")
    if options.json:
        save(options.json, "launch" if on_gpu else "launch (no driver)", rows)


def candidates(device: str) -> Candidates:
    """What is timed on `device`, each called a few times so that everything it needs is made."""
    one = torch.zeros(1024, device=device, dtype=torch.float16)
    a, b, c = (torch.randn(128, 128, device=device, dtype=torch.float16) for _ in range(3))
    matmul = product("float16")
    constants = {"BM": 128, "BN": 128, "BK": 64}
    found: Candidates = {}
    for name, kernel, call in (
        ("empty kernel, 1 tensor", empty_kernel, lambda: empty_kernel(one)),
        ("matmul, 3 tensors", matmul, lambda: matmul(a, b, c, **constants)),
    ):
        for _ in range(3):
            call()
        if device == "cpu":
            for launches in kernel.prepared.values():
                launches.update(dict.fromkeys(launches, no_driver()))
            name += ", without a driver"
        found[name] = call
        ((ready,),) = (launches.values() for launches in kernel.prepared.values())
        found[f"{name}: the call of the driver alone"] = ready
    if device != "cpu":
        found["torch add_"] = lambda: one.add_(1)
        found["torch matmul(out=)"] = lambda: torch.matmul(a, b, out=c)
    return found


def no_driver() -> Callable[[], int]:
    """A C function of four pointers that returns 0 at once, called as the driver is called."""
    entry = ctypes.CDLL(None).labs
    entry.restype, entry.argtypes = ctypes.c_int, [ctypes.c_void_p] * 4
    return functools.partial(entry, None, 1 << 40, 1 << 40, None)


def timed(functions: Candidates, on_gpu: bool) -> dict[str, list[float]]:
    """Microseconds per call, one sample per round, the candidates in a new order in each."""
    names = list(functions)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        random.shuffle(names)
        for name in names:
            fn = functions[name]
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                fn()
            samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return samples


if __name__ == "__main__":
    main()
