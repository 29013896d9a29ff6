"""C = A + B: the smallest kernel. The length is known at run time only and need not fill the last
block."""

from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

N = T.dynamic("N")


@tilec.kernel
def vector_add(
    A: T.Tensor((N,), "float32"),
    B: T.Tensor((N,), "float32"),
    C: T.Tensor((N,), "float32"),
    BLOCK: T.constexpr = 1024,
):
    with T.Kernel(T.ceildiv(N, BLOCK), threads=128) as block:
        for i in T.Parallel(BLOCK):
            C[block * BLOCK + i] = A[block * BLOCK + i] + B[block * BLOCK + i]


SPECS = [(vector_add, [tilec.spec((100_003,), "float32")] * 3, {})]


def main(sizes: tuple[int, ...] = (1, 1000, 100_003)) -> None:
    worst = 0.0
    for n in sizes:
        a, b, c = random((n,), "float32", 1), random((n,), "float32", 2), empty((n,), "float32")
        vector_add(a, b, c)
        worst = max(worst, check(f"vector_add({n})", c, float64(a) + float64(b)))
    print(f"vector_add on {WHERE}: lengths {sizes}, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
