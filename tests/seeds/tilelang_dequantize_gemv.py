"""TileLang's product of one row with packed weights of four bits, from its paper (figure 11,
"Implementation of Weight-Only Quantization Matmul"), with only the decorator and the import lines
changed. The figure leaves out what its names stand for: sizes, the tensors' shapes and the threads'
indices are those of the program that it shows.

Source: https://github.com/tile-ai/tilelang, examples/dequantize_gemm. MIT License:

Copyright (c) Tile-AI.

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
# fmt: off
# ruff: noqa: E501, I001

import tilec
import tilec.language as T


def dequantize_gemv(
    M, N, K, in_dtype="float16", out_dtype="float16", accum_dtype="float32",
    storage_dtype="int8", num_bits=4, n_partition=4, reduce_thread=32,
):
    num_elems_per_byte = 8 // num_bits
    micro_size_k = 128 // T.dtype(in_dtype).bits
    micro_size_k_compressed = micro_size_k // num_elems_per_byte
    block_K = reduce_thread * micro_size_k
    A_shape = (M, K)
    B_shape = (N, K // num_elems_per_byte)
    C_shape = (M, N)

    @tilec.kernel(pdl=True)
    def main(A: T.Tensor(A_shape, in_dtype), B: T.Tensor(B_shape, storage_dtype), C: T.Tensor(C_shape, out_dtype)):
        with T.Kernel(T.ceildiv(N, n_partition), M, threads=(reduce_thread, n_partition)) as (bx, by):
            A_local = T.alloc_local((micro_size_k,), in_dtype)
            B_quant_local = T.alloc_local([micro_size_k_compressed], storage_dtype)
            B_dequantize_local = T.alloc_local([micro_size_k], in_dtype)
            accum_res = T.alloc_local((1,), accum_dtype)
            reduced_accum_res = T.alloc_local((1,), accum_dtype)

            kr = T.thread_binding(0, reduce_thread, thread="threadIdx.x")
            ni = T.thread_binding(0, n_partition, thread="threadIdx.y")

            T.clear(accum_res)
            for ko in T.serial(T.ceildiv(K, block_K)):
                for v in T.vectorized(micro_size_k):
                    A_local[v] = A[by, ko * block_K + kr * micro_size_k + v]
                for v in T.vectorized(micro_size_k_compressed):
                    B_quant_local[v] = B[
                        bx * n_partition + ni,
                        ko * (reduce_thread * micro_size_k_compressed) +
                        kr * micro_size_k_compressed + v,
                    ]
                T.call_extern(
                    "fast_decode_int4",
                    T.address_of(B_quant_local[0]),
                    T.address_of(B_dequantize_local[0]),
                    dtype=in_dtype,
                )
                for ki in T.serial(micro_size_k):
                    accum_res[0] += A_local[ki] * B_dequantize_local[ki]
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.Cast(accum_dtype, 0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(
                        T.uint32(1),
                        accum_res[0],
                        True,
                        reduced_accum_res[0],
                        kr,
                        dtype="handle",
                    ))
            if kr == 0:
                C[by, bx * n_partition + ni] = reduced_accum_res[0]

    return main
