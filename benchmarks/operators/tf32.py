"""float32 products with operands rounded to TF32, as torch.matmul with allow_tf32; NT and NN."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.products import Product, product_case

SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (1024, 14336, 4096), (4096, 4096, 14336))


def cases() -> list[Case]:
    return [
        product_case("tf32", Product(*shape, kind, "float32"), priority=i, quick=i < 3)
        for i, shape in enumerate(SHAPES)
        for kind in ("NT", "NN")
    ]
