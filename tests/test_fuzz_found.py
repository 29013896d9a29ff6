"""Programs on which the fuzzer found faults of tilec, each shrunk to what mattered: on every target
they give now what their source means, without a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilec
import tilec.language as T
from tilec.fuzz.outcome import TARGETS, check
from tilec.fuzz.program import Array
from tilec.passes.utils.distribution import covering

M = T.dynamic("M")
FOUND: dict[str, tuple[Any, dict[str, Any]]] = {}


def found(**arguments: Any) -> Callable[[Any], Any]:
    """A kernel and its arguments."""

    def add(kernel: Any) -> Any:
        FOUND[kernel.name] = kernel, arguments
        return kernel

    return add


@found(C=Array((8, 9)))
@tilec.kernel
def variable_of_each_iteration(C: T.Tensor((8, 9), "float32")):
    """Took the variable for an element that all iterations write."""
    with T.Kernel(1, threads=64):
        for i, j in T.Parallel(8, 9):
            x = T.alloc_var("float32")
            x = T.cast(i, "float32")
            for _ in range(2):
                x = x + 1.0
            C[i, j] = x


@found(A=Array((3, 2), "int16"), C=Array((2, 2)))
@tilec.kernel
def fragment_of_one_element(A: T.Tensor((3, 2), "int16"), C: T.Tensor((2, 2), "float32")):
    """An IndexError: no dimension was left for the loop's index."""
    with T.Kernel(2, 2, threads=64) as (bx, by):
        f = T.alloc_fragment((1, 1), "int16")
        S = T.alloc_shared((1, 1, 1), "float32")
        T.copy(A[by, bx], f)
        T.copy(f, S)
        T.copy(S, C[by, bx])


@found(A=Array((1, 1), "float16"), B=Array((1, 1), "float16"), C=Array((1, 1)))
@tilec.kernel
def bits_of_one_value_for_all(
    A: T.Tensor((1, 1), "float16"), B: T.Tensor((1, 1), "float16"), C: T.Tensor((1, 1), "float32")
):
    """Parts of a value that is the same for all lanes became an array of one lane."""
    with T.Kernel(1, 1, threads=128) as (bx, by):
        kept = T.alloc_fragment((1, 1), "float32")
        f = T.alloc_fragment((16, 64), "float16")
        S = T.alloc_shared((16, 16), "float16")
        acc = T.alloc_fragment((64, 16), "float32")
        T.copy(A[by, bx], kept)
        for _ in T.Pipelined(2):
            kept[0, 0] = kept[0, 0]
        T.copy(B[0, 1], f)
        for i, j in T.Parallel(16, 16):
            S[i, j] = i
        T.gemm(f, S, acc, transpose_A=True, clear_accum=True)
        T.copy(acc, C[by, bx])


@found(C=Array((2, 3), "uint64", content="blank"))
@tilec.kernel
def numbers_that_no_index_is(C: T.Tensor((2, 3), "uint64")):
    """An OverflowError where races of iterations are looked for."""
    with T.Kernel(1, threads=1):
        for i, j in T.Parallel(1, 2):
            C[i, 0 + j] = T.min(T.cast(j, "uint64"), T.max_value("uint64"))


@found(C=Array((3, 6), content="blank"))
@tilec.kernel
def one_element_written_twice(C: T.Tensor((3, 6), "float32")):
    """No barrier stood between two statements that write one element by different threads."""
    with T.Kernel(1, threads=128):
        f = T.alloc_fragment((3, 6), "float32")
        T.fill(f, 2.0)
        for i, j in T.Parallel(3, 6):
            C[2 - i, 5 - j] = 1.0
        T.copy(f, C)


@found(C=Array((32, 10), "int32", content="blank"))
@tilec.kernel
def narrowed_beside_an_edge(C: T.Tensor((32, 10), "int32")):
    """The CPU wrote the whole int64 where one element was left of a row."""
    with T.Kernel(1, threads=64) as bx:
        S = T.alloc_shared((32, 9), "int64")
        for i, j in T.Parallel(32, 9):
            S[i, j] = 1
        T.copy(S, C[bx, bx])


@found(A=Array((2, 16), "int64"), C=Array((2, 16), "uint8", content="blank"), n=1)
@tilec.kernel
def narrow_vectors_beside_the_end(
    A: T.Tensor((2, 16), "int64"), C: T.Tensor((2, 16), "uint8"), n: T.int32
):
    """The CPU wrote 16 bytes where 8 elements of a byte each were stored."""
    with T.Kernel(n, threads=64) as bx:
        S = T.alloc_shared((16, 16), "int64")
        T.copy(A[bx, 0], S)
        for _ in T.serial(n):
            for i, j in T.Parallel(3, 16):
                C[i, j] = A[i, i]
        T.copy(S, C[bx, bx])


@found(A=Array((0, 1)), C=Array((1, 1), content="blank"))
@tilec.kernel
def tensor_without_rows(A: T.Tensor((M, 1), "float32"), C: T.Tensor((1, 1), "float32")):
    """GPUs read the first element of it."""
    with T.Kernel(1, threads=64) as bx:
        C[bx, bx] = A[bx, bx]


@found(A=Array((1, 4), "bool"), C=Array((32, 4), content="blank"))
@tilec.kernel
def bools_between_lanes(A: T.Tensor((1, 4), "bool"), C: T.Tensor((32, 4), "float32")):
    """The simulator did not know i2, which two bools are for a shuffle."""
    with T.Kernel(1, threads=64) as bx:
        f = T.alloc_fragment((32, 4), "float64")
        T.copy(A[bx, bx], f)
        for i, j in T.Parallel(32, 4):
            C[i, j] = f[i, j]


@found(C=Array((32,), content="blank"), D=Array((32, 2), content="blank"))
@tilec.kernel
def elements_held_twice_by_a_thread(C: T.Tensor((32,), "float32"), D: T.Tensor((32, 2), "float32")):
    """A fragment whose elements lie in two registers of a thread: GPUs added to memory twice."""
    with T.Kernel(1, threads=32) as bx:
        S = T.alloc_shared((32, 2), "float32")
        total = T.alloc_shared((32,), "float32")
        f = T.alloc_fragment((32,), "float32")
        for i, j in T.Parallel(32, 2):
            S[i, j] = i * 2 + j
        T.fill(f, 9.0)
        T.clear(total)
        for i in T.Parallel(32):
            total[i] += f[i]
        for i, j in T.Parallel(32, 2):
            S[i, j] = S[i, j] - f[i]
        T.copy(total, C[bx * 32])
        T.copy(S, D[bx * 32, 0])


@found(C=Array((32,), content="blank"), D=Array((32, 2), content="blank"))
@tilec.kernel
def elements_held_twice_and_written(C: T.Tensor((32,), "float32"), D: T.Tensor((32, 2), "float32")):
    """The same where the loop changes the fragment, too."""
    with T.Kernel(1, threads=32) as bx:
        S = T.alloc_shared((32, 2), "float32")
        total = T.alloc_shared((32,), "float32")
        f = T.alloc_fragment((32,), "float32")
        for i, j in T.Parallel(32, 2):
            S[i, j] = i * 2 + j
        T.fill(total, 2.0)
        for i in T.Parallel(32):
            f[i] = total[i] * 3.0
            total[i] = total[i] * total[i] + 1.0
        for i, j in T.Parallel(32, 2):
            S[i, j] = S[i, j] - f[i]
        T.copy(total, C[bx * 32])
        T.copy(S, D[bx * 32, 0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FOUND)
def test_program(name: str, target: str) -> None:
    kernel, arguments = FOUND[name]
    check(kernel, arguments, (target,))


@pytest.mark.parametrize("vector", [1, 2])
@pytest.mark.parametrize("shape", [(7, 15), (3, 5, 2), (30,), (24, 32)])
def test_small_odd_tiles_are_spread(shape: tuple[int, ...], vector: int) -> None:
    """The fuzzer's slowest programs: every thread copied all of a tile of fewer elements than
    threads."""
    layout = covering(shape, 32, 32, vector)
    assert layout.size("reg") == vector and all(a <= b for a, b in zip(shape, layout.shape))


@found(
    A=Array((64, 64), "float8_e4m3"),
    B=Array((24, 64), "float8_e4m3"),
    C=Array((64, 24)),
    D=Array((51, 56), "uint8", view="offset"),
    E=Array((24, 64), "int8"),
    F=Array((64, 24), "int32"),
)
@tilec.kernel
def stages_that_stay_one(
    A: T.Tensor((64, 64), "float8_e4m3"),
    B: T.Tensor((24, 64), "float8_e4m3"),
    C: T.Tensor((64, 24), "float32"),
    D: T.Tensor((51, 56), "uint8"),
    E: T.Tensor((24, 64), "int8"),
    F: T.Tensor((64, 24), "int32"),
):
    """A schedule was refused: behind a product of the whole block needs no barrier what is copied
    into its operand by the threads, though the buffer was to be a ring."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 32), "float8_e4m3"), T.alloc_shared((24, 32), "float8_e4m3")
        d, e = T.alloc_shared((64, 32), "uint8"), T.alloc_shared((24, 32), "int8")
        c = T.alloc_fragment((64, 24), "float32")
        f = T.alloc_fragment((64, 24), "int32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[0, k * 32], a)
            T.copy(B[0, k * 32], b)
            T.gemm(a, b, c, transpose_B=True)
        T.clear(f)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(D[0, k * 32], d)
            T.copy(E[0, k * 32], e)
            T.gemm(d, e, f, transpose_B=True)
        T.copy(c, C)
        T.copy(f, F)


@tilec.kernel
def columns_in_four_bits(C: T.Tensor((1, 8), "float32"), n: T.int32):
    with T.Kernel(1, threads=1):
        a, b = T.alloc_shared((11, 8), "float64"), T.alloc_shared((8, 11), "float64")
        c = T.alloc_fragment((11, 11), "float64")
        T.clear(c)
        for _ in T.Pipelined(n):
            T.gemm(a, b, c)
        T.copy(c, C[0, 0])


def test_integers_of_few_bits_have_a_sign() -> None:
    """LLVM asks whether a column is below 8 by the sign of four bits; to the simulator they had
    none, and it saw a store out of bounds."""
    given = {"C": Array((1, 8), "float32", content="blank"), "n": 0}
    check(columns_in_four_bits, given, ("cuda:sm_90a:optimised",))


@tilec.kernel
def few_of_a_tile(
    A: T.Tensor((1, 1), "float16"),
    B: T.Tensor((1, 1), "float16"),
    C: T.Tensor((1, 1), "float32"),
    E: T.Tensor((1, M), "float32"),
    n: T.int32,
):
    with T.Kernel(1, threads=33):
        for by, bx in T.Persistent([1, M]):
            b, c = T.alloc_shared((11, 17), "float16"), T.alloc_fragment((1, 11), "float32")
            T.clear(c)
            for k in T.Pipelined(n):
                a = T.alloc_shared((17, 1), "float16")
                T.copy(A[k, by], a)
                T.copy(B[bx, k], b)
                T.gemm(a, b, c, transpose_A=True, transpose_B=True)
            T.copy(c, C[by, bx])


def test_lanes_meet_with_a_number_each_way() -> None:
    """Each way had one number for all of its lanes: where they met, the simulator stopped."""
    given = {
        "A": Array((1, 1), "float16", seed=869),
        "B": Array((1, 1), "float16", seed=287),
        "C": Array((1, 1), "float32", content="blank"),
        "E": Array((1, 1), "float32", content="blank"),
        "n": 2,
    }
    check(few_of_a_tile, given, ("cuda:sm_80:optimised",))
