"""fp16 matrix product against cuBLAS, on the TileLang paper's shapes.

    python -m benchmarks.bench_gemm [--quick] [--json results/gemm.json]

Each row: TFLOP/s of both (median of shuffled rounds), their ratio, and the relative error of both
against float64.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import tilec
import tilec.language as T
from benchmarks.harness import graphed, interleaved, save, spread

SHAPES = [
    (8192, 1024, 8192),
    (8192, 8192, 8192),
    (8192, 28672, 8192),
    (8192, 8192, 28672),
]
EXTRA = [(4096, 4096, 4096), (1024, 1024, 1024)]

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def matmul_nn(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 128,
    BN: T.constexpr = 256,
    BK: T.constexpr = 64,
    stages: T.constexpr = 4,
    warps: T.constexpr = 8,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=32 * warps) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])


@tilec.kernel
def matmul_nt(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 128,
    BN: T.constexpr = 256,
    BK: T.constexpr = 64,
    stages: T.constexpr = 4,
    warps: T.constexpr = 8,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=32 * warps) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BN, BK), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[bx * BN, k * BK], B_s)
            T.gemm(A_s, B_s, acc, transpose_B=True)
        T.copy(acc, C[by * BM, bx * BN])


def tiles(m: int, n: int) -> dict[str, int]:
    """Tile of each shape class: large ones where they fill the chip."""
    if m * n <= 1024 * 1024:
        return {"BM": 64, "BN": 128, "BK": 64, "stages": 6, "warps": 4}
    return {"BM": 128, "BN": 256, "BK": 64, "stages": 4}


def error(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rows: int = 256) -> float:
    """Relative Frobenius error against float64, over `rows` random rows."""
    pick = torch.randperm(a.shape[0], device=a.device)[:rows]
    want = a[pick].double() @ b.double()
    return float(((got[pick].double() - want).norm() / want.norm()).item())


def measure(m: int, n: int, k: int, kind: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda", dtype=torch.half)
    b = torch.randn((k, n) if kind == "NN" else (n, k), device="cuda", dtype=torch.half)
    c, ref = (torch.full((m, n), float("nan"), device="cuda", dtype=torch.half) for _ in range(2))
    right = b if kind == "NN" else b.t()
    kernel = matmul_nn if kind == "NN" else matmul_nt
    meta = tiles(m, n)
    repeat = 20 if m * n * k <= 1 << 31 else 1
    fns = {
        "tilec": lambda: kernel(a, b, c, **meta),
        "cublas": lambda: torch.matmul(a, right, out=ref),
    }
    fns["tilec"](), fns["cublas"]()
    row: dict[str, Any] = {"shape": [m, n, k], "kind": kind, "tile": meta}
    row["error"] = {"tilec": error(c, a, right), "cublas": error(ref, a, right)}
    timed = {n_: graphed(f, repeat) for n_, f in fns.items()} if repeat > 1 else fns
    samples = interleaved(timed, rounds)
    flops = 2.0 * m * n * k * repeat
    for name in fns:
        stats = spread(samples[name])
        row[name] = {key: flops / stats[key] / 1e9 for key in ("median", "p10", "p90")}
    row["ratio"] = spread(samples["cublas"])["median"] / spread(samples["tilec"])["median"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", default="")
    parser.add_argument("--shapes", default="all", choices=["all", "paper"])
    args = parser.parse_args()
    rounds = 11 if args.quick else 31
    rows = []
    for shape in SHAPES + (EXTRA if args.shapes == "all" else []):
        for kind in ("NN", "NT"):
            row = measure(*shape, kind, rounds)
            rows.append(row)
            print(
                f"{'x'.join(map(str, shape))} {kind}: tilec {row['tilec']['median']:.0f} TFLOP/s, "
                f"cuBLAS {row['cublas']['median']:.0f}, ratio {row['ratio']:.3f}, error "
                f"{row['error']['tilec']:.2e} (cuBLAS {row['error']['cublas']:.2e})",
                flush=True,
            )
    if args.json:
        save(args.json, "gemm", rows)


if __name__ == "__main__":
    main()
