"""Kernels of mathematics only: T.Parallel loops over whole tensors, without a grid.

Such a loop becomes a program with a grid, in syntax, and is traced as that; `nests` says what it
is, `forms` which program, and `blocks` writes it. Sums of products (`products`),
`for k in range(K): acc += A[i, k] * B[k, j]`, become tiled T.gemm whose tile sizes are left to
T.auto (compile-time parameters BM, BN and BK of the kernel); those inside of loops along rows
(`inner`), and sums across these (`across`), what such loops' tiles have; other loops over rows of
two tensors tiles of these (`pairs`); a body of assignments a T.Parallel over tiles, of up to 256
columns; one with loops inside is done over `tiles`, for several iterations at once, or goes along
`rows`, a warp's on a GPU; any other one is done by one thread for each iteration.
"""
