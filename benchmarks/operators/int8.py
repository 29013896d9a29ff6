"""int8 products with int32 results against torch._int_mm, NT."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.products import Product, product_case

SHAPES = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (256, 4096, 4096),
    (1024, 14336, 4096),
    (4096, 4096, 14336),
    (4096, 28672, 8192),
)


def cases() -> list[Case]:
    return [
        product_case("int8", Product(*shape, "NT", "int8"), priority=i, quick=i < 4)
        for i, shape in enumerate(SHAPES)
    ]
