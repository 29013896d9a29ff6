"""fp8 (e4m3) products against torch._scaled_mm with fast accumulation; bf16 results, NT."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.operators.llm import ROWS, WEIGHTS
from benchmarks.products import Product, product_case


def cases() -> list[Case]:
    found = [product_case("fp8", Product(8192, 8192, 8192, "NT", "float8_e4m3"))]
    for m in ROWS:
        for i, (n, k) in enumerate(WEIGHTS):
            p = Product(m, n, k, "NT", "float8_e4m3")
            found.append(product_case("fp8", p, priority=1 + i, quick=i in (0, 3)))
    return found
