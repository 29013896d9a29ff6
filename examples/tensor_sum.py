"""The sum of a whole tensor. Blocks, as many as the device holds, walk over it and add up what they
read in registers, each element in its own; then each block adds one number to the result, by an
atomic. The order of these is not fixed: the last bits may differ from run to run.
"""

import numpy as np
from example_support import WHERE, float64, random, zeros

import tilec
import tilec.language as T

N = T.dynamic("N")


@tilec.kernel
def tensor_sum(
    X: T.Tensor((N,), "float16"),
    S: T.Tensor((1,), "float32"),
    BN: T.constexpr = 4096,
    BLOCKS: T.constexpr = 512,
):
    with T.Kernel(T.min(T.ceildiv(N, BN), BLOCKS), threads=256) as block:
        x = T.alloc_fragment((BN,), "float16")
        sums = T.alloc_fragment((BN,), "float32")
        total = T.alloc_fragment((1,), "float32")
        T.clear(sums)
        for n in T.serial(T.ceildiv(T.ceildiv(N, BN) - block, BLOCKS)):
            T.copy(X[(n * BLOCKS + block) * BN], x)
            for i in T.Parallel(BN):
                sums[i] += x[i]
        T.reduce_sum(sums, total)
        T.atomic_add(S[0], total)


SPECS = [(tensor_sum, [tilec.spec((1 << 24,), "float16"), tilec.spec((1,), "float32")], {})]


def main(sizes: tuple[int, ...] = (1, 5000, 4_000_003)) -> None:
    worst = 0.0
    for n in sizes:
        x, total = random((n,), "float16"), zeros((1,), "float32")
        tensor_sum(x, total)
        values = float64(x)
        # rounding is of partial sums: as large as the sum of absolute values may be
        moved = np.abs(float64(total) - values.sum()) / np.abs(values).sum()
        worst = max(worst, float(moved[0]))
        assert worst < 2.0**-20, f"sum of {n} numbers: error {worst:.1e}"
    print(f"tensor_sum on {WHERE}: largest error {worst:.1e} of the sum of absolute values")


if __name__ == "__main__":
    main()
