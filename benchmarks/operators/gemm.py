"""fp16 and bf16 products: the TileLang paper's four shapes, square, small and ragged ones."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.products import Product, product_case

PAPER = ((8192, 1024, 8192), (8192, 8192, 8192), (8192, 28672, 8192), (8192, 8192, 28672))
OTHERS = ((4096, 4096, 4096), (1024, 1024, 1024), (4000, 3000, 2008))
KINDS = ("NN", "NT", "TN", "TT")


def cases() -> list[Case]:
    found = []
    for priority, dtype in enumerate(("float16", "bfloat16")):
        for shape in PAPER:
            for kind in KINDS:
                straight = kind in ("NN", "NT")
                p = Product(*shape, kind, dtype)
                found.append(product_case("gemm", p, priority if straight else 4, quick=straight))
        for shape in OTHERS:
            for kind in KINDS:
                p = Product(*shape, kind, dtype)
                fp16 = dtype == "float16"
                found.append(product_case("gemm", p, 2 if fp16 else 3, quick=fp16))
    return found
