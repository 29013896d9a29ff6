"""Programmatic dependent launch: who asks for it, what code begins with, how it is launched."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.codegen.assemble import launch_control_first
from tilec.runtime import cuda
from tilec.runtime.image import Image, ImageError

M, N, K = T.dynamic("M, N, K")
BOTH = ("trigger", "wait")
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def plain(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 256), threads=256) as bx:
        for i in T.Parallel(256):
            B[bx * 256 + i] = A[bx * 256 + i] + 1


@tilec.kernel
def waits_late(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 256), threads=256) as bx:
        x = T.alloc_fragment((256,), "float32")
        T.copy(A[bx * 256], x)
        for k in T.serial(3):
            if k > 1:
                T.pdl_sync()
            for i in T.Parallel(256):
                x[i] += A[bx * 256 + i]
        T.copy(x, B[bx * 256])


@tilec.kernel
def triggers(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 256), threads=256) as bx:
        for i in T.Parallel(256):
            B[bx * 256 + i] = A[bx * 256 + i] + 1
        T.pdl_trigger()


@tilec.kernel
def says_both(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 256), threads=256) as bx:
        T.pdl_sync()
        for i in T.Parallel(256):
            B[bx * 256 + i] = A[bx * 256 + i] + 1
        T.pdl_trigger()


@tilec.kernel
def second_waits(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 256), threads=256) as bx:
        for i in T.Parallel(256):
            B[bx * 256 + i] = A[bx * 256 + i]
    with T.Kernel(T.ceildiv(M, 128), threads=128) as bx:
        T.pdl_sync()
        for i in T.Parallel(128):
            B[bx * 128 + i] += 1


def product(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"),
            C: T.Tensor((M, N), "float16"), BM: T.constexpr = 128, BN: T.constexpr = 128,
            BK: T.constexpr = 64):  # fmt: skip
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
        A_s, B_s = T.alloc_shared((BM, BK), "float16"), T.alloc_shared((BN, BK), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK)):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[bx * BN, k * BK], B_s)
            T.gemm(A_s, B_s, acc, transpose_B=True)
        T.copy(acc, C[by * BM, bx * BN])


ASKS = {
    "decorator": (tilec.kernel(pdl=True)(plain), BOTH, 2),
    "both": (says_both, BOTH, 2),
    "wait": (waits_late, ("wait",), 4),
    "trigger": (triggers, ("trigger",), 2),
    "no": (tilec.kernel(plain), (), 2),
}
SPECS = [tilec.spec((1000,), "float32")] * 2


def made(kernel: Any, target: str, *specs: Any) -> tilec.CompiledKernel:
    return kernel.compile(*(specs or SPECS), target=target)


def first_instructions(ptx: str) -> list[str]:
    """What is in the kernel before anything but declarations, labels and places."""
    body = ptx[ptx.index("\n{\n") + 3 :]
    lines = [x.strip() for x in body.split("\n")]
    code = [x for x in lines if x and not x.startswith((".", "$", "//"))]
    return [x for x in code[:2] if x.startswith("griddepcontrol")]


@pytest.mark.parametrize("who", ASKS)
def test_what_code_begins_with(who: str) -> None:
    kernel, asked, _ = ASKS[who]
    got = made(kernel, "cuda:sm_90a")
    told = "pdl=(" + ", ".join(f'"{w}"' for w in asked) + ")"
    assert (told in got.stages["tile"]) == ("pdl" in got.stages["tile"]) == bool(asked)
    words = {"trigger": "griddepcontrol.launch_dependents;", "wait": "griddepcontrol.wait;"}
    assert first_instructions(got.asm) == [words[w] for w in asked]
    assert got.asm.count("griddepcontrol") == len(asked)
    assert got.image.pdl == ("wait" in asked)


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("who", ["decorator", "wait"])
def test_other_targets_do_without(who: str, target: str) -> None:
    got = made(ASKS[who][0], target)
    assert "griddepcontrol" not in got.asm and not got.image.pdl


@pytest.mark.parametrize("which", ["elements", "product"])
def test_the_rest_stays_what_it_is(which: str) -> None:
    function = {"elements": plain, "product": product}[which]
    specs = SPECS if which == "elements" else [tilec.spec((512, 512), "float16")] * 3
    with_it = made(tilec.kernel(pdl=True)(function), "cuda:sm_90a", *specs).asm
    without = made(tilec.kernel(function), "cuda:sm_90a", *specs).asm
    lines = [x for x in with_it.split("\n") if "griddepcontrol" not in x]
    assert lines == without.split("\n")


@pytest.mark.parametrize("size", [1, 255, 1000])
@pytest.mark.parametrize("who", ASKS)
def test_numbers_on_the_cpu(who: str, size: int) -> None:
    kernel, _, times = ASKS[who]
    a = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    b = np.zeros_like(a)
    kernel(a, b)
    want = a.astype(float) * 4 if times == 4 else a.astype(float) + 1
    assert np.abs(b - want).max() <= 1e-6 * (np.abs(want).max() + 1)


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("who", ASKS)
def test_numbers_in_the_simulator(who: str, target: str) -> None:
    kernel, _, times = ASKS[who]
    a = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    b = np.zeros_like(a)
    report = tilec.simulate(kernel, a, b, target=target)
    assert report.ok, report
    want = a.astype(float) * 4 if times == 4 else a.astype(float) + 1
    assert np.abs(b - want).max() <= 1e-6 * (np.abs(want).max() + 1)


def test_a_product_by_tma_in_the_simulator() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, (130, 200)).astype(np.float16) for _ in "ab")
    c = np.zeros((130, 130), np.float16)
    kernel = tilec.kernel(pdl=True)(product)
    report = tilec.simulate(kernel, a, b, c, target="cuda:sm_90a")
    assert report.ok, report
    assert np.array_equal(c, (a.astype(float) @ b.astype(float).T).astype(np.float16))


def test_each_of_several_kernels() -> None:
    def images(kernel: Any) -> list[bool]:
        return [c.image.pdl for c in kernel.parts.compile(SPECS, "cuda:sm_90a", {})]

    assert images(second_waits) == [False, True]
    assert images(tilec.kernel(pdl=True)(second_waits.function)) == [True, True]
    a, b = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    tilec.kernel(pdl=True)(second_waits.function)(a, b)
    assert np.array_equal(b, a + 1)


def test_loads_do_not_stand_in_front() -> None:
    """To LLVM nothing changes a tensor that the kernel only reads."""
    wait = "\t// begin inline asm\n\tgriddepcontrol.wait;\n\t// end inline asm\n"
    trigger = wait.replace("wait", "launch_dependents")
    head = (
        ".visible .entry k(\n\t.param .u64 k_param_0\n)\n.maxntid 32\n{\n\t.reg .b32 \t%r<3>;\n\n"
    )
    load = "\tld.global.nc.b32 \t%r1, [%rd1];\n"
    got = launch_control_first(head + load + trigger + load + wait + load + "\tret;\n}\n")
    first = "\tgriddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;\n"
    assert got.replace("\n\n", "\n") == head[:-1] + first + load * 3 + "\tret;\n}\n"
    other = head + load + "\tret;\n}\n"
    assert launch_control_first(other) is other


def test_only_who_waits_is_launched_beside() -> None:
    def config(**wishes: bool) -> cuda.LaunchConfig:
        image = made(ASKS["no"][0], "cuda:sm_90a").image
        return cuda._launch_config(replace(image, **wishes), (5, 1, 1), 0)

    assert ctypes.sizeof(cuda.LaunchAttribute) == 72
    for number, wishes in ((6, {"pdl": True}), (2, {"cooperative": True, "pdl": True})):
        found = config(**wishes)
        assert found.attribute_count == 1
        words = (ctypes.c_int * 18).from_address(found.attributes)
        assert list(words) == [number, 0, 1] + [0] * 15
    found = config()
    assert found.attribute_count == 0 and found.attributes is None


def test_files_and_headers(tmp_path: Path) -> None:
    got = made(ASKS["decorator"][0], "cuda:sm_90a")
    got.save(tmp_path / "k.tilec")
    assert tilec.load(tmp_path / "k.tilec").image.pdl
    _, header = got.export_c(tmp_path / "k")
    assert "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 1" in header.read_text()
    other = made(ASKS["no"][0], "cuda:sm_90a")
    _, header = other.export_c(tmp_path / "other")
    assert "PROGRAMMATIC" not in header.read_text() and not other.image.pdl
    on_cpu = made(ASKS["no"][0], "cpu").image
    wrong = Image(**{f: getattr(on_cpu, f) for f in on_cpu.__dataclass_fields__} | {"pdl": True})
    with pytest.raises(ImageError, match="waits for launches"):
        Image.from_bytes(wrong.to_bytes(), "k")


def test_the_cache_tells_them_apart() -> None:
    sources = {tilec.kernel(plain)._current().source for _ in range(2)}
    assert sources.isdisjoint({tilec.kernel(pdl=True)(plain)._current().source})


@pytest.mark.parametrize("pdl", [3, 0, 1.0, None, "yes", (True,), [], BOTH])
def test_what_is_no_bool(pdl: Any) -> None:
    with pytest.raises(tilec.CompileError, match="pdl of tilec.kernel is .*, not a bool") as e:
        tilec.kernel(pdl=pdl)
    assert "write pdl=True" in str(e.value) and "tilec.kernel(pdl=pdl)" in str(e.value)


def test_near_names() -> None:
    with pytest.raises(tilec.CompileError, match="no keyword 'pdll'.*pdl"):
        tilec.kernel(pdll=True)
    for word in (T.pdl_sync, T.pdl_trigger):
        with pytest.raises(tilec.TilecError, match="kernel"):
            word()


def test_words_take_nothing() -> None:
    @tilec.kernel
    def wrong(A: T.Tensor((M,), "float32")):
        with T.Kernel(1, threads=32):
            T.pdl_sync(A)

    with pytest.raises(tilec.CompileError, match=r"T.pdl_sync") as e:
        wrong.compile(tilec.spec((3,), "float32"), target="cpu")
    assert "T.pdl_sync(A)" in str(e.value)
