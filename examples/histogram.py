"""How often each value occurs: counted in shared memory, block by block, then added up at once.

Updates of one element by many threads are atomics.
"""

import numpy as np
from example_support import WHERE, float64, integers

import tilec
import tilec.language as T

N = T.dynamic("N")
BINS = 256


@tilec.kernel
def histogram(X: T.Tensor((N,), "int32"), H: T.Tensor((BINS,), "int32"), BN: T.constexpr = 4096):
    with T.Kernel(T.ceildiv(N, BN), threads=256) as block:
        counts = T.alloc_shared((BINS,), "int32")
        T.clear(counts)
        for i in T.Parallel(BN):
            if block * BN + i < N:
                T.atomic_add(counts[X[block * BN + i]], 1)
        T.atomic_add(H[0], counts)


SPECS = [(histogram, [tilec.spec((1 << 20,), "int32"), tilec.spec((BINS,), "int32")], {})]


def main(sizes: tuple[int, ...] = (1, 5000, 100_000)) -> None:
    for n in sizes:
        values = np.random.default_rng(n).integers(0, BINS, n)
        counts = integers([0] * BINS)
        histogram(integers(values.tolist()), counts)
        want = np.bincount(values, minlength=BINS)
        assert np.array_equal(float64(counts), want), f"histogram of {n} values"
    print(f"histogram on {WHERE}: {len(sizes)} sizes, every count right")


if __name__ == "__main__":
    main()
