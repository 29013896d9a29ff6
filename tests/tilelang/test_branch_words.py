"""Words and forms of TileLang's programs: branches by T.If, contexts of Python's, logical words."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

# mypy: ignore-errors


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


class Noted:
    def __init__(self, value: int) -> None:
        self.value = value

    def __enter__(self) -> int:
        return self.value

    def __exit__(self, *raised: Any) -> None:
        pass


def test_branches_and_contexts_in_with() -> None:
    @tilelang.jit(out_idx=[-1])
    def program(n: int, block: int):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(T.ceildiv(n, block), threads=32) as bx:
                with contextlib.nullcontext():
                    for i in T.Parallel(block):
                        at = bx * block + i
                        with T.If(T.And(at < n, T.Not(T.Or(i == 3, A[at] < 0)))):
                            with T.Then():
                                B[at] = A[at] * 2
                            with T.Else(), Noted(2) as two:
                                B[at] = two + 5
                with Noted(1) as one, T.If(bx == 0), T.Then():
                    B[0] = one

        return main

    assert list(program.signature.parameters) == ["n", "block"]
    a = numbers(50)
    want = np.where((a < 0) | (np.arange(50) % 32 == 3), 7, a * 2)
    want[0] = 1
    assert np.array_equal(program(50, 32)(a), want)


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("with T.If(x > 0): B[0] = x", "T.If holds what is neither T.Then nor T.Else"),
        ("with T.If(x, 3), T.Then(): B[0] = x", "T.If has one condition"),
    ],
)
def test_what_stands_in_a_branch(inside: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import tilec.tilelang.language as T\n@T.prim_func\n"
        "def main(B: T.Tensor((1,), 'float32')):\n    with T.Kernel(1, threads=32):\n"
        f"        x = B[0]\n        {inside}\n"
    )
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(tilec.CompileError, match=message):
        names["main"].compile(np.zeros(1, np.float32), target="cuda:sm_90a")


def test_layouts_of_what_a_thread_has_whole() -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_local([1], "float32")
            T.annotate_layout({x: T.Fragment(x.shape, forward_thread_fn=lambda i: i)})
            x[0] = 0
            for k in T.serial(64):
                x[0] += A[k]
            B[0] = x[0]

    a, b = numbers(64), np.zeros(1, np.float32)
    tilelang.compile(main)(a, b)
    np.testing.assert_allclose(b[0], a.sum(), rtol=1e-4)


def test_a_loop_that_is_left() -> None:
    @T.prim_func
    def main(A: T.Tensor((8, 32), "float32"), B: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.get_thread_binding()
            total = T.alloc_var("float32", 0.0)
            for k in T.serial(8):
                if A[k, x] < 0:
                    T.loop_break()
                total = total + A[k, x]
            B[x] = total

    a, b = numbers(8, 32) + 1, np.zeros(32, np.float32)
    tilelang.compile(main)(a, b)
    kept = np.cumprod(a >= 0, axis=0)
    np.testing.assert_allclose(b, (a * kept).sum(0), rtol=1e-5)


def test_no_loop_to_leave() -> None:
    @T.prim_func
    def main(B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            T.loop_break()

    with pytest.raises(tilec.CompileError, match="stands in no loop"):
        main.compile(np.zeros(1, np.float32), target="cuda:sm_90a")


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
def test_words_of_tvm(target: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((2, 32), "int32"), B: T.Tensor((4, 32), "int32")):
        with T.Kernel(1, threads=32):
            x = T.get_thread_binding()
            s = T.alloc_shared((32,), "int32")
            T.ptx_cp_async(
                T.tvm_access_ptr(T.type_annotation("int32"), s.data, x, 1, 2),
                T.tvm_access_ptr(T.type_annotation("int32"), A.data, 32 + x, 1, 1),
                1,
            )
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            B[0, x] = T.tvm_warp_shuffle_up(T.uint32(0xFFFFFFFF), A[0, x], 4, 32, 32)
            B[1, x] = T.tvm_warp_shuffle_down(T.uint32(0xFFFFFFFF), A[0, x], 4, 16, 32)
            B[2, x] = s[x]
            T.tvm_storage_sync("shared")
            s[31 - x] = A[0, x]
            T.tvm_storage_sync("shared.dyn")
            B[3, x] = s[(x + 1) % 32]
            T.tvm_storage_sync("warp")

    a = np.random.default_rng(0).integers(0, 99, (2, 32)).astype(np.int32)
    b = np.zeros((4, 32), np.int32)
    if target == "cpu":
        main(a, b)
    else:
        assert tilec.simulate(main, a, b, target=target).ok
    lanes = np.arange(32)
    assert np.array_equal(b[0], a[0][np.where(lanes < 4, lanes, lanes - 4)])
    assert np.array_equal(b[1], a[0][np.where(lanes % 16 > 11, lanes, (lanes + 4) % 32)])
    assert np.array_equal(b[2], a[1])
    assert np.array_equal(b[3], np.roll(a[0][::-1], -1))


@pytest.mark.parametrize(("steps", "twice", "launches"), [
    (0, False, 1), (0, True, 3), (7, False, 4), (3, True, 4), (2, False, 1),
])  # fmt: skip
def test_as_many_launches_as_the_program_says(steps: int, twice: bool, launches: int) -> None:
    """Loops and branches around launches, by what is known before a call."""

    @tilelang.jit(out_idx=[1])
    def program(n: int):
        @T.macro
        def add(A, B, by, first):
            with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
                for i in T.Parallel(32):
                    old = A[bx * 32 + i] if first else B[bx * 32 + i] * 2
                    B[bx * 32 + i] = old + by

        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            add(A, B, 0, True)
            whole = steps // 3 * 3
            for s in range(0, whole, 3):
                add(A, B, s + 1, False)
                if s == 3:
                    add(A, B, 100, False)
            if twice:
                add(A, B, 7, False)
                add(A, B, 8, False)
            elif steps > 100:
                add(A, B, 9, False)

        return main

    a = np.arange(50, dtype=np.float32)
    want = a
    for s in range(0, steps // 3 * 3, 3):
        want = want * 2 + s + 1
        want = want * 2 + 100 if s == 3 else want
    want = (want * 2 + 7) * 2 + 8 if twice else want
    kernel = program(50)
    assert kernel.kernel.signature.kernels == launches
    assert np.array_equal(kernel(a), want)
