"""fp16 layers of language models: few to many rows, weights as torch.nn.Linear has them (NT)."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.products import Product, product_case

ROWS = (16, 64, 256, 1024, 4096)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192))  # (N, K)


def cases() -> list[Case]:
    return [
        product_case("llm", Product(m, n, k, "NT", "float16"), priority)
        for m in ROWS
        for priority, (n, k) in enumerate(WEIGHTS)
    ]
