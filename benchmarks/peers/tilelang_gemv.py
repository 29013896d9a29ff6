"""TileLang's product of one row with packed weights of four bits: the listing of its paper's figure
11, with the decode function as CUDA C++."""

# mypy: disable-error-code="valid-type,no-untyped-def,untyped-decorator"
# Annotations are values here: no `from __future__ import annotations`.

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import tilelang
import tilelang.language as T
import torch

logging.getLogger("tilelang").setLevel(logging.WARNING)

_TRACING = threading.Lock()  # compiling is for several threads at a time, tracing for one
_DECODE = """
template <typename From, typename To>
__device__ void fast_decode_int4(From *packed, To *values) {
  unsigned *pairs = reinterpret_cast<unsigned *>(values);
  unsigned const word = *reinterpret_cast<unsigned *>(packed);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    asm volatile("lop3.b32 %0, %1, %2, %3, 0xEA;"
                 : "=r"(pairs[i]) : "r"(word >> (4 * i)), "n"(0x000f000f), "n"(0x64006400));
    asm volatile("sub.f16x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(pairs[i]), "r"(0x64006400));
  }
}
"""


@functools.cache
def compiled(n: int, k: int, n_partition: int, reduce_thread: int) -> Any:
    """The kernel for one shape, with sums in float32."""
    with _TRACING:
        traced = _trace(n, k, n_partition, reduce_thread)
    return tilelang.compile(traced)


def _trace(n: int, k: int, n_partition: int, reduce_thread: int) -> Any:
    micro_size_k, micro_size_k_compressed = 8, 4
    block_K = reduce_thread * micro_size_k

    @T.prim_func
    def main(
        A: T.Tensor((1, k), "float16"),
        B: T.Tensor((n, k // 2), "int8"),
        C: T.Tensor((1, n), "float16"),
    ):
        with T.Kernel(T.ceildiv(n, n_partition), 1, threads=(reduce_thread, n_partition)) as (
            bx,
            by,
        ):
            A_local = T.alloc_local((micro_size_k,), "float16")
            B_quant_local = T.alloc_local([micro_size_k_compressed], "int8")
            B_dequantize_local = T.alloc_local([micro_size_k], "float16")
            accum_res = T.alloc_local((1,), "float32")
            reduced_accum_res = T.alloc_local((1,), "float32")
            kr = T.thread_binding(0, reduce_thread, thread="threadIdx.x")
            ni = T.thread_binding(0, n_partition, thread="threadIdx.y")
            T.import_source(_DECODE)
            T.clear(accum_res)
            for ko in T.serial(T.ceildiv(k, block_K)):
                for v in T.vectorized(micro_size_k):
                    A_local[v] = A[by, ko * block_K + kr * micro_size_k + v]
                for v in T.vectorized(micro_size_k_compressed):
                    B_quant_local[v] = B[
                        bx * n_partition + ni,
                        ko * (reduce_thread * micro_size_k_compressed)
                        + kr * micro_size_k_compressed
                        + v,
                    ]
                T.call_extern(
                    "fast_decode_int4",
                    T.address_of(B_quant_local[0]),
                    T.address_of(B_dequantize_local[0]),
                    dtype="float16",
                )
                for ki in T.serial(micro_size_k):
                    accum_res[0] += A_local[ki] * B_dequantize_local[ki]
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.Cast("float32", 0)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(
                        T.uint32(1), accum_res[0], True, reduced_accum_res[0], kr, dtype="handle"
                    )
                )
            if kr == 0:
                C[by, bx * n_partition + ni] = reduced_accum_res[0]

    return main


def bind(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, config: dict[str, Any]
) -> Callable[[], torch.Tensor]:
    """c = a decode(b)^T."""
    run = compiled(b.shape[0], a.shape[1], **config)

    def call() -> torch.Tensor:
        run(a, b, c)
        return c

    return call
