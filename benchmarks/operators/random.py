"""fp16 products drawn at random: sizes from 1 to 16384, all transpositions, padded or odd rows."""

from __future__ import annotations

import math
import random

from benchmarks.case import Case
from benchmarks.products import Product, cublas, ours, product_case

SEED, COUNT = 20261122, 60
LARGEST = 16384


def cases() -> list[Case]:
    return [product_case("random", p, candidates=(ours, cublas)) for p in drawn(SEED, COUNT)]


def drawn(seed: int, count: int) -> list[Product]:
    """`count` products; the logarithms of M, N and K are uniform."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        m, n, k = (max(1, round(math.exp(rng.uniform(0, math.log(LARGEST))))) for _ in range(3))
        kind, rows = rng.choice(("NN", "NT", "TN", "TT")), rng.choice(("padded", "odd"))
        found.append(Product(m, n, k, kind, "float16", rows))
    return found
