"""The K largest numbers of each row and where they are, in descending order; of equal ones the
first comes first.

A whole row lies in the registers of one block, read once. K times the largest is found, then the
first place that has it, which is taken out.
"""

import numpy as np
from example_support import WHERE, empty, float64, integers, random

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def top_k(
    X: T.Tensor((M, N), "float16"),
    V: T.Tensor((M, K), "float16"),
    I: T.Tensor((M, K), "int32"),  # noqa: E741
    BN: T.constexpr = 2048,
):
    with T.Kernel(M, threads=128) as row:
        T.annotate_safe_value({X: -T.infinity("float16")})
        x = T.alloc_fragment((1, BN), "float32")
        place = T.alloc_fragment((1, BN), "int32")
        high, first = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "int32")
        T.copy(X[row, 0], x)
        for k in T.serial(K):
            T.reduce_max(x, high, dim=1)
            for i, j in T.Parallel(1, BN):
                place[i, j] = T.if_then_else(x[i, j] == high[i], j, BN)
            T.reduce_min(place, first, dim=1)
            for i, j in T.Parallel(1, BN):
                x[i, j] = T.if_then_else(j == first[i], -T.infinity("float32"), x[i, j])
            for i in T.Parallel(1):
                V[row, k] = high[i]
                I[row, k] = first[i]


_SHAPES = ((512, 2048), "float16"), ((512, 8), "float16"), ((512, 8), "int32")
SPECS = [(top_k, [tilec.spec(*s) for s in _SHAPES], {})]


def main(shapes: tuple[tuple[int, ...], ...] = ((64, 2048, 8), (7, 1, 1), (33, 1000, 5))) -> None:
    for m, n, k in shapes:
        x, values = random((m, n), "float16"), empty((m, k), "float16")
        places = integers(np.full((m, k), -1).tolist())
        top_k(x, values, places)
        rows = float64(x)
        want = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        assert np.array_equal(float64(places), want), f"places of ({m}, {n}), {k}"
        assert np.array_equal(float64(values), np.take_along_axis(rows, want, 1)), "values"
    print(f"top_k on {WHERE}: {len(shapes)} shapes, every place right")


if __name__ == "__main__":
    main()
