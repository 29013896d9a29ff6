"""fp16 products of uncommon sizes: rows an odd number of elements apart, few blocks, long sums."""

from __future__ import annotations

from benchmarks.case import Case
from benchmarks.products import Product, cublas, ours, product_case

ODD = ((2047, 4095, 1023, ("NN", "NT", "TN")), (4095, 4095, 4095, ("NN", "NT")))
FEW = (
    (512, 512, 65536, ("NT", "TN")),
    (1000, 1000, 1000, ("NN", "NT")),
    (1536, 1536, 1536, ("NN", "NT")),
    (333, 4096, 11008, ("NN", "NT")),
    (200, 5120, 5120, ("NN", "NT")),
    (80, 8192, 8192, ("NT",)),
    (1000, 1001, 1000, ("NN",)),
    (7777, 1234, 2346, ("NT",)),
)


def cases() -> list[Case]:
    odd, few = (
        [Product(m, n, k, kind) for m, n, k, kinds in sizes for kind in kinds]
        for sizes in (ODD, FEW)
    )
    few.append(Product(768, 3072, 768, "NT", "bfloat16"))
    beside_peers = [product_case("uncommon", p) for p in odd]  # cuBLAS is slow at these itself
    return beside_peers + [product_case("uncommon", p, candidates=(ours, cublas)) for p in few]
