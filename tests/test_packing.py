"""Packed operands: a launch copies tensors whose rows begin anywhere to aligned rows first, where
that is predicted to be faster.

Before, such a product was brought by the threads of each tile (`passes/utils/realign.py`):
4095x4095x4095 took 729 us on an H200, and takes 234 with the copies (41)."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from test_combine_parts import Memory
from test_realign import rows
from test_runtime_cuda import install, launches

import tilec
import tilec.language as T
from tilec import tune
from tilec.jit import choose, packing
from tilec.jit.compiled import CompiledKernel
from tilec.jit.export import c_header
from tilec.runtime import devices
from tilec.runtime.image import Image, ImageError

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N, K, L = T.dynamic("M, N, K, L")


def product(dtype: str = "float16", kind: str = "NN", accumulate: str = "float32") -> Any:
    """C = A B with tiles and schedule left to tilec; A and B as `kind` says."""
    ta, tb = kind[0] == "T", kind[1] == "T"
    a_shape, b_shape = ((K, M) if ta else (M, K)), ((N, K) if tb else (K, N))

    @tilec.kernel
    def matmul(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((M, N), accumulate),
        BM: T.constexpr = T.auto, BN: T.constexpr = T.auto, BK: T.constexpr = T.auto,
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
            A_s = T.alloc_shared((BK, BM) if ta else (BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if tb else (BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), accumulate)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                if ta:
                    T.copy(A[k * BK, by * BM], A_s)
                else:
                    T.copy(A[by * BM, k * BK], A_s)
                if tb:
                    T.copy(B[bx * BN, k * BK], B_s)
                else:
                    T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc, transpose_A=ta, transpose_B=tb)
            T.copy(acc, C[by * BM, bx * BN])

    return matmul


shared = functools.cache(product)  # for tests that ask for a choice: 50 tiles are traced for one


@tilec.kernel
def batched(
    A: T.Tensor((L, M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    R: T.Tensor((L, M, N), "float16"),
    C: T.Tensor((L, M, N), "float16"),
):
    """C = A Bᵀ + R."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), L, threads=128) as (bx, by, bz):
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((64, 32), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(A[bz, by * 64, k * 32], A_s)
            T.copy(B[bx * 32, k * 32], B_s)
            T.gemm(A_s, B_s, acc, transpose_B=True)
        for i, j in T.Parallel(64, 32):
            C[bz, by * 64 + i, bx * 32 + j] = acc[i, j] + R[bz, by * 64 + i, bx * 32 + j]


@tilec.kernel
def consuming(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
              C: T.Tensor((M, N), "float32")):  # fmt: skip
    """C = A B, and A becomes zero: it is no operand that a launch may copy."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], A_s)
            T.copy(B[k * 32, bx * 64], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 64, bx * 64])
        T.clear(A_s)
        T.copy(A_s, A[by * 64, 0])


@tilec.kernel
def strided(A: T.StridedTensor((M, K), (L, 1), "float16"), B: T.Tensor((K, N), "float16"),
            C: T.Tensor((M, N), "float32")):  # fmt: skip
    """C = A B: the strides of A have a name, which the kernel could read."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], A_s)
            T.copy(B[k * 32, bx * 64], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 64, bx * 64])


def spec(*shape: int, dtype: str = "float16", pitch: int = 0) -> Any:
    return tilec.spec(shape, dtype, (pitch, 1) if pitch else None)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies cost nothing: whatever can be packed is."""
    monkeypatch.setattr(choose.packing, "pays", lambda *given: True)
    monkeypatch.setattr(choose.packing, "left", lambda *given: math.inf)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")


# --- the choice -----------------------------------------------------------------------------------


def test_rows_begin_at_lines() -> None:
    """The score of a packed product is that of one whose rows begin at cache lines: as if its rows
    straddled them, the loads from the L2 cache took 2.8 times as long."""
    kernel, sizes = shared(), (4095, 4095, 4095)
    asked = kernel.described(
        (spec(*sizes[:2]),) * 2 + (spec(*sizes[:2], dtype="float32"),), "cuda:sm_90a", {}
    )
    base = asked.key()
    found = kernel.choices.rank(dataclasses.replace(base, packed=("A", "B")), asked)
    first = found.ranked[0].estimate
    assert first is not None and first.seconds < 230e-6, "measured: 193 us"
    assert first.l2_bytes < 2e9


@pytest.mark.parametrize("kind", ["NN", "NT"])
def test_a_product_with_much_to_do_packs(kind: str) -> None:
    a, b = spec(2047, 1023), spec(4095, 1023) if kind == "NT" else spec(1023, 4095)
    made = product(kind=kind).compile(a, b, spec(2047, 4095, dtype="float32"), target="cuda:sm_90a")
    assert made.image.packed == ("A", "B")
    assert {p.arg for p in made.image.params if p.role == "tensor_map"} >= {"A", "B"}
    assert made.asm.count("ld.global") == 0, "TMA brings all operands"
    assert "\npacked: A, B\n" in made.stages["plan"]


@pytest.mark.covering(1, axes=("why",))
@pytest.mark.parametrize(
    ("why", "a", "b", "packed"),
    [
        ("all rows are aligned", (4095, 4096), (4096, 4096), ()),
        ("one operand's are not", (4095, 4095), (4095, 4096), ("A",)),
        ("two launches more cost more than the product", (63, 63), (63, 63), ()),
        ("B is read once", (17, 4095), (4095, 4095), ()),
        ("B is read once", (9, 6737), (6737, 3637), ()),
        ("A is read once", (4095, 4095), (4095, 65), ()),
        ("B is read once", (64, 5001), (5001, 5001), ()),
        ("115 MB each", (14001, 4095), (4095, 14001), ("A", "B")),
        ("270 MB each: too much to keep", (33001, 4095), (4095, 33001), ()),
    ],
)
def test_what_is_packed(
    why: str, a: tuple[int, int], b: tuple[int, int], packed: tuple[str, ...]
) -> None:
    kernel = shared()
    c = spec(a[0], b[1], dtype="float32")
    facts = kernel.key_of((spec(*a), spec(*b), c), "cuda:sm_90a", {})
    assert facts.packed == packed, why


def test_the_best_plain_tile_may_be_bad_when_packed() -> None:
    """Threads multiply float32 from rows that cannot be turned: 192x256 is best as the operands
    are, takes 2.6 times as long as 192x128 with copies, and packing pays for all that."""
    a, b = tilec.spec((2051, 1501), "float32"), tilec.spec((2051, 1999), "float32", (2001, 1))
    kernel, c = product("float32", "TN"), spec(1501, 1999, dtype="float32")
    assert kernel.key_of((a, b, c), "cuda:sm_90a", {}).packed == ("A", "B")


def test_a_search_that_cannot_pay_is_left_out() -> None:
    """Packed, the tile that is best without copies is tried first; where a search from there could
    not win what the copies cost, that is all: a search is some 50 tiles."""
    kernel, sizes = product(), (4095, 4095)
    asked = kernel.described(
        (spec(*sizes),) * 2 + (spec(*sizes, dtype="float32"),), "cuda:sm_90a", {}
    )
    base = asked.key()
    packed = dataclasses.replace(base, packed=("A", "B"))
    begin = {"BM": 64, "BN": 64, "BK": 64}

    def search(below: float) -> tune.Choice | None:
        return kernel.choices.rank(packed, asked, [begin], below)

    assert search(50e-6) is None, "less than a third of what it takes"
    assert len(kernel.choices._choosers[packed]._candidates) == 1
    found = search(300e-6)
    assert found is not None and found.best is not None and found.best.seconds < 230e-6
    assert len(kernel.choices._choosers[packed]._candidates) > 20


def test_what_cannot_be_packed(free: None) -> None:
    def packed(kernel: Any, *args: Any) -> tuple[str, ...]:
        found: tuple[str, ...] = kernel.key_of(args, "cuda:sm_90a", {}).packed
        return found

    a, b, c = spec(257, 127), spec(127, 257), spec(257, 257, dtype="float32")
    assert packed(shared(), a, b, c) == ("A", "B")
    facts = shared().key_of((a, b, c), "cuda:sm_90a", {})
    assert [t.dense for t in facts.arguments] == [16] * 3
    assert [t.dense for t in facts.traced] == [0, 0, 16], "there are gaps between packed rows"
    assert packed(consuming, a, b, c) == ("B",), "A is written"
    assert packed(strided, a, b, c) == ("B",), "the kernel may read the stride"
    turned = tilec.spec((257, 127), "float16", (1, 257))
    assert packed(shared(), turned, b, c) == ("A", "B"), "its columns are neighbours"
    apart = tilec.spec((257, 127), "float16", (512, 2))
    assert packed(shared(), apart, b, c) == ("A", "B"), "none of its elements are"
    assert packed(
        shared("float32"), spec(257, 127, dtype="float32"), spec(127, 257, dtype="float32"), c
    ) == ("A", "B")
    three = [
        tilec.spec(s, "float16") for s in ((3, 257, 127), (65, 127), (3, 257, 65), (3, 257, 65))
    ]
    assert packed(batched, *three) == ("A", "B"), "R is read once, and by no product"


def test_a_large_operand_of_few_rows_is_put_together() -> None:
    """It is read once; as it is, element by element, unless it is a transposed view."""

    def packed(n: int = 14336, strides: tuple[int, int] | None = None) -> tuple[str, ...]:
        w = tilec.spec((4096, n), "float16", strides)
        args = spec(7, 4096), w, spec(7, n, dtype="float32")
        found: tuple[str, ...] = shared().key_of(args, "cuda:sm_90a", {}).packed
        return found

    apart = packed(strides=(2, 8192)), packed(16, (2, 8192))
    assert apart == (("B",), ()) and packed() == packed(strides=(1, 4096)) == ()


def test_the_cpu_packs_nothing(free: None) -> None:
    rng = np.random.default_rng(4)
    a, b = rows(rng, (66, 67), "float16", 0, 1), rows(rng, (67, 33), "float16", 2, 1)
    c = np.zeros((66, 33), np.float32)
    kernel = product()
    assert kernel.key_of((a, b, c), "cpu", {}).packed == ()
    kernel(a, b, c)
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float))


def test_a_forced_plan_packs_nothing(free: None) -> None:
    args = spec(257, 127), spec(127, 257), spec(257, 257, dtype="float32")
    kernel = product()
    made = kernel.compile(*args, target="cuda:sm_90a")
    assert made.image.packed == ("A", "B") and made.plan is not None
    sizes = dict(zip(("BM", "BN", "BK"), (64, 64, 32)))
    assert (
        kernel.compile_with_plan(made.plan, *args, target="cuda:sm_90a", **sizes).image.packed == ()
    )


def test_the_choice_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("TILEC_DISABLE_CACHE", raising=False)
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(choose.packing, "pays", lambda *given: True)
    monkeypatch.setattr(choose.packing, "left", lambda *given: math.inf)
    args = spec(257, 127), spec(127, 257), spec(257, 257, dtype="float32")
    kernel = product()
    first = kernel.compile(*args, target="cuda:sm_90a")
    kernel.clear()
    monkeypatch.setattr(choose.Choices, "rank", None)  # whoever asks for it fails
    again = kernel.compile(*args, target="cuda:sm_90a")
    assert again.image.packed == first.image.packed == ("A", "B")
    assert again.image.binary == first.image.binary


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.covering(1)
@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
def test_values(free: None, kind: str, target: str) -> None:
    m, n, k = 66, 35, 67
    rng = np.random.default_rng(7)
    a = rows(rng, (k, m) if kind[0] == "T" else (m, k), "float16", 1, 3)
    b = rows(rng, (n, k) if kind[1] == "T" else (k, n), "float16", 2, 1)
    c = np.full((m, n), np.nan, np.float32)
    kernel = shared(kind=kind)
    assert kernel.key_of((a, b, c), target, {}).packed == ("A", "B")
    report = tilec.simulate(kernel, a, b, c, target=target)
    assert not report.findings
    want = (a.T if kind[0] == "T" else a).astype(float) @ (b.T if kind[1] == "T" else b).astype(
        float
    )
    np.testing.assert_array_equal(c, want)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize(("dtype", "accumulate"), [("int8", "int32"), ("float32", "float32")])
def test_other_elements(free: None, dtype: str, accumulate: str) -> None:
    rng = np.random.default_rng(8)
    a, b = rows(rng, (66, 67), dtype, 0, 1), rows(rng, (33, 67), dtype, 2, 0)
    c = np.zeros((66, 33), accumulate)
    kernel = shared(dtype, "NT", accumulate)
    assert kernel.key_of((a, b, c), "cuda:sm_90a", {}).packed == ("A", "B")
    assert not tilec.simulate(kernel, a, b, c).findings
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float).T)


def test_a_batch(free: None) -> None:
    rng = np.random.default_rng(9)
    memory = rng.integers(0, 4, 2 * 5000).astype(np.float16)
    a = np.lib.stride_tricks.as_strided(memory[1:], (2, 65, 67), (2 * 4999, 2 * 69, 2))
    b, r = rows(rng, (33, 67), "float16", 0, 1), rng.integers(0, 9, (2, 65, 33)).astype(np.float16)
    c = np.zeros((2, 65, 33), np.float16)
    assert batched.key_of((a, b, r, c), "cuda:sm_90a", {}).packed == ("A", "B")
    assert not tilec.simulate(batched, a, b, r, c).findings
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float).T + r)


def test_what_shares_memory_with_the_result_is_not_copied(free: None) -> None:
    memory = np.ones((70, 67), np.float16)
    a, c = memory[:66], memory[4:, :33]
    b = np.ones((67, 33), np.float16)
    planned = product(accumulate="float16").plan_launch("cuda:sm_90a", None, (a, b, c), {})
    assert planned.key.may_alias and planned.variant.image.packed == ()


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("shape", [(2, 9, 259), (1, 8, 256), (1, 17, 5)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_the_copying_kernel(dtype: str, shape: tuple[int, int, int], target: str) -> None:
    rng = np.random.default_rng(3)
    memory = rng.integers(0, 200, 2 + shape[0] * shape[1] * (shape[2] + 1)).astype(dtype)
    size = memory.itemsize
    steps = (shape[1] * (shape[2] + 1) * size, (shape[2] + 1) * size, size)
    a = np.lib.stride_tricks.as_strided(memory[1:], shape, steps)
    out = np.zeros((*shape[:2], shape[2] + 16 - shape[2] % 16), dtype)
    assert not tilec.simulate(
        packing.packer.packer(dtype), a, out[..., : shape[2]], target=target
    ).findings
    np.testing.assert_array_equal(out[..., : shape[2]], a)
    assert not out[..., shape[2] :].any()


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("shape", [(2, 9, 70), (1, 64, 64), (1, 65, 5)])
def test_the_turning_kernel(shape: tuple[int, int, int], target: str) -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(0, 200, shape).astype("uint16")
    out = np.zeros((shape[0], shape[2], 80), "uint16")
    found = tilec.simulate(packing.packer.turner("uint16"), a, out[..., : shape[1]], target=target)
    assert not found.findings
    np.testing.assert_array_equal(out[..., : shape[1]], a.transpose(0, 2, 1))
    assert not out[..., shape[1] :].any()


def test_an_operand_whose_columns_are_neighbours_is_turned(free: None) -> None:
    """`x @ w.T`, by a kernel of A and B: TMA brings no tile of w.T, as rows of w begin anywhere."""
    sizes = dict(zip(("BM", "BN", "BK"), (64, 64, 32)))
    rng = np.random.default_rng(5)
    a = (rng.standard_normal((70, 96)) / 8).astype(np.float16)
    w, c = (rng.standard_normal((48, 97)) / 8).astype(np.float16), np.zeros((70, 48), np.float32)
    w = w[:, :96]
    planned = shared().plan_launch("cuda:sm_90a", None, (a, w.T, c), sizes)
    assert planned.variant.image.packed == ("B",)
    maps = {p.arg for p in planned.variant.image.params if p.role == "tensor_map"}
    assert maps >= {"A", "B"}
    report = tilec.simulate(shared(), a, w.T, c, target="cuda:sm_90a", **sizes)
    assert not report.findings
    np.testing.assert_allclose(c, a.astype(float) @ w.T.astype(float), rtol=2e-3, atol=2e-3)


# --- launches -------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, free: None) -> Any:
    api = Memory()
    install(monkeypatch, api)
    monkeypatch.setattr(devices, "_drivers", {})
    devices.device_target.cache_clear()
    packing.packer.packer.cache_clear()  # it may have been loaded by another stand-in
    yield api
    devices.device_target.cache_clear()
    packing.packer.packer.cache_clear()  # and is loaded by this one now


def array(*shape: int, dtype: str = "float16") -> Any:
    """A torch tensor of the first GPU, as far as a launch looks at it, at 16 bytes."""
    import torch

    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)

        def get_device(self) -> int:
            return 0

    memory = torch.empty(shape[0] * shape[1] + 16, dtype=getattr(torch, dtype))
    at = -memory.data_ptr() % 16 // memory.itemsize
    return memory[at : at + shape[0] * shape[1]].view(shape).as_subclass(OnGpu)


@pytest.mark.torch
def test_nothing_comes_between_copies_and_kernel(gpu: Memory) -> None:
    """Threads that launch on one stream share the copies' memory."""
    kernel = product()
    args = array(257, 127), array(127, 257), array(257, 257, dtype="float32")
    kernel(*args, stream=0x77)
    gpu.at_launch = lambda params: time.sleep(1e-3)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: kernel(*args, stream=0x77), range(16)))
    shared = [launch[2] for launch in launches(gpu)]
    assert shared[2] > 0 and shared == [0, 0, shared[2]] * 17


@pytest.mark.torch
def test_copies_come_before_the_kernel(gpu: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    maps: dict[str, int] = {}

    def look(params: int) -> None:
        pointers = (ctypes.c_uint64 * 2).from_address(params)
        seen.append([ctypes.c_uint64.from_address(p).value for p in pointers])
        for i, p in enumerate(next(iter(kernel._variants.values())).image.params):
            if len(seen) % 3 == 0 and p.role == "tensor_map":
                value = ctypes.c_uint64.from_address(params + 8 * i).value
                maps[p.arg] = ctypes.c_uint64.from_address(value).value

    kernel = product()
    args = array(257, 127), array(127, 257), array(257, 257, dtype="float32")
    a, b, _ = (t.data_ptr() for t in args)
    gpu.at_launch = look
    kernel(*args, stream=0x77)
    (variant,) = kernel._variants.values()
    first = launches(gpu)
    assert [launch[3] for launch in first] == [0x77] * 3
    assert first[2][1] == (variant.resources.threads, 1, 1)
    (room,) = [c[1] for c in gpu.calls if c[0] == "cuMemAlloc"]
    at, size = gpu.last, 257 * 256
    assert room >= size + 127 * 640
    assert seen[0] == [a, at] and seen[1] == [b, at + size], "each copy: from, to"
    encoded = [c for c in gpu.calls if c[0] == "cuTensorMapEncodeTiled"]
    assert [c[5] for c in encoded] == [[256], [640]], "bytes from row to row"
    assert maps == {"A": at, "B": at + size}
    kernel(*args, stream=0x77)
    with monkeypatch.context() as m:
        m.setattr(tilec.Kernel, "_launch", None)  # whoever asks for it fails
        kernel(*args, stream=0x77)
    assert [launch[:4] for launch in launches(gpu)[3:]] == [launch[:4] for launch in first] * 2
    kernel(*args, stream=0x88)
    assert gpu.names().count("cuMemAlloc") == 2, "another stream has its own copies"
    gpu.captured = 5
    kernel(*args, stream=0x77)
    assert gpu.names().count("cuMemAlloc") == 3, "and a graph"
    gpu.captured = 0
    seen.clear()
    moved = array(257, 127)
    with monkeypatch.context() as m:
        m.setattr(tilec.Kernel, "_launch", None)
        maps.clear()
        kernel(moved, *args[1:], stream=0x77)
        assert seen[:2] == [[moved.data_ptr(), at], [b, at + size]]
        assert maps == {"A": at, "B": at + size}
        gpu.captured = 6
        kernel(array(257, 127), *args[1:], stream=0x77)
        assert maps["A"] == gpu.last != at and seen[4] == [b, gpu.last + size]
        gpu.captured = 0
    assert len(kernel._variants) == 1
    gpu.failing["cuMemAlloc"] = 2
    kernel(*args, stream=0x99)
    assert [v.image.packed for v in kernel._variants.values()] == [("A", "B"), ()]
    assert [launch[3] for launch in launches(gpu)[-2:]] == [0x77, 0x99], "no room: no copies"
    gpu.failing = {"launch": 700}
    with pytest.raises(tilec.TilecError, match="launching matmul"):
        kernel(moved, *args[1:], stream=0x77)


@pytest.mark.torch
def test_a_file_launches_as_the_kernel_does(
    gpu: Memory, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """What a launch needs was made anew in each call: 703 us on an H200, the kernel's own 15."""
    args = array(257, 127), array(127, 257), array(257, 257, dtype="float32")
    product().compile(*args).save(tmp_path / "k.tilec")
    loaded = tilec.load(tmp_path / "k.tilec")
    for _ in range(2):
        loaded(*args, stream=0x77)
    first = launches(gpu)[:3]
    with monkeypatch.context() as m:
        m.setattr(CompiledKernel, "_launch", None)  # whoever asks for it fails
        loaded(*args, stream=0x77)
        loaded(array(257, 127), *args[1:], stream=0x77)
    assert [x[:4] for x in launches(gpu)] == [x[:4] for x in first] * 4


def test_files(free: None, tmp_path: Any) -> None:
    args = spec(257, 127), spec(127, 257), spec(257, 257, dtype="float32")
    made = product().compile(*args, target="cuda:sm_90a")
    made.save(tmp_path / "k.tilec")
    assert tilec.load(tmp_path / "k.tilec").image.packed == ("A", "B")
    header = c_header(made.image, "matmul", "k.cubin")
    assert "A and B: a copy whose rows begin at multiples of 16 bytes" in header
    for name in ("Z", "C"):
        wrong = dataclasses.replace(made.image, packed=(name,))
        with pytest.raises(ImageError, match=f"it packs {name}"):
            Image.from_bytes(CompiledKernel(wrong, made.stages)._whole(), "it")
