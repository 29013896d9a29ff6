"""Barriers, TMA copies and groups of threads by hand: numbers, the code they become, and what the
simulator says of programs that lack one of their parts."""

from __future__ import annotations

from typing import Any

import barrier_programs as programs
import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError, ResourceError

HOPPER = "cuda:sm_90a"


def operands(m: int, n: int, k: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(m + n + k)
    a = rng.standard_normal((m, k)).astype("float16")
    b = rng.standard_normal((k, n)).astype("float16")
    return a, b, np.full((m, n), np.nan, "float32"), a.astype("float64") @ b.astype("float64")


def run(kernel: Any, m: int, n: int, k: int, **meta: Any) -> Any:
    a, b, c, want = operands(m, n, k)
    report = tilec.simulate(kernel, a, b, c, target=HOPPER, **meta)
    return report, c, want


SIZES = ((128, 64, 160), (100, 72, 96), (130, 65, 90), (1, 1, 1), (64, 128, 520))


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    ("name", "meta"),
    [
        ("ring", {"stages": 1}),
        ("ring", {"stages": 2}),
        ("ring", {"stages": 4, "BN": 128}),
        ("apart", {}),
        ("apart", {"stages": 2, "BK": 64}),
        ("together", {}),
        ("together", {"threads": 256}),
        ("in_flight", {}),
        ("shared_tile", {}),
        ("parts", {}),
        ("parts", {"threads": 256}),
        ("in_flight", {"BK": 48, "threads": 256}),
    ],
    ids=str,
)
def test_products(name: str, meta: dict[str, Any], size: tuple[int, int, int]) -> None:
    report, c, want = run(getattr(programs, name), *size, **meta)
    assert not report.findings, report
    np.testing.assert_allclose(c, want, atol=1e-4)


CUTS = {
    ("ring", "wait_free"): "parity can alias",
    ("ring", "arrive_full"): "deadlock",
    ("ring", "wait_full"): "read before wait",
    ("ring", "arrive_free"): "deadlock",
    ("ring", "parity"): "parity can alias",
    ("apart", "count"): "data race",
    ("apart", "wait_free"): "overwritten before read",
    ("together", "wait"): "read before wait",
    ("in_flight", "copies"): "read before wait",
    ("in_flight", "products"): "overwritten before read",
}


@pytest.mark.parametrize(("name", "cut"), CUTS, ids=str)
def test_what_is_left_out_is_found(name: str, cut: str) -> None:
    report, _, _ = run(getattr(programs, name), 128, 64, 160, cut=cut)
    assert CUTS[name, cut] in {f.kind for f in report.findings}, report
    assert "report this as its fault" not in str(report)  # the order is the author's


def text_of(kernel: Any, stage: str, m: int = 128, n: int = 64, k: int = 160, **meta: Any) -> str:
    a, b, c, _ = operands(m, n, k)
    return str(kernel.compile(a, b, c, target=HOPPER, **meta).stages[stage])


def test_groups_become_scopes_and_run_alone() -> None:
    text = text_of(programs.apart, "group_threads")
    assert "scope threads_0, 0, 4" in text and "scope threads_128, 4, 4" in text
    assert "for.pipelined" not in text  # its author orders it
    ptx = text_of(programs.apart, "ptx")
    assert "setmaxnreg.dec.sync.aligned.u32 104" in ptx
    assert "setmaxnreg.inc.sync.aligned.u32 152" in ptx
    assert "mbarrier.expect_tx.relaxed.cta.shared::cta.b64" in ptx


def test_a_group_that_tma_cannot_serve_copies_itself() -> None:
    fits, odd = (text_of(programs.ring, "lower_barriers", k=k) for k in (160, 90))
    assert fits.count("tma_load") == 2 and odd.count("tma_load") == 1  # rows of 180 bytes


def test_a_fence_stands_before_an_arrival_that_hands_a_tile_to_wgmma() -> None:
    body = text_of(programs.apart, "insert_sync").split("scope threads_0", 1)[1]
    body = body.split("scope threads_128", 1)[0]
    assert body.index("tma_copy") < body.index("proxy_fence") < body.index("mbarrier_arrive")


@pytest.mark.covering(1)
@pytest.mark.parametrize("cut", ["", "freed", "arrive", "wait"])
@pytest.mark.parametrize("shape", [(8, 96), (13, 200), (1, 1)])
def test_groups_of_two_warps_hand_tiles_on(shape: tuple[int, int], cut: str) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    y = np.zeros_like(x)
    if cut == "arrive":  # certain, so said without a run
        with pytest.raises(CompileError, match=r"nobody arrives at made\[0\]"):
            tilec.simulate(programs.handed_on, x, y, target=HOPPER, cut=cut)
        return
    report = tilec.simulate(programs.handed_on, x, y, target=HOPPER, cut=cut)
    if cut and (cut != "freed" or shape[1] > 96):
        assert report.findings
    elif not cut:
        assert not report.findings, report
        np.testing.assert_allclose(y, x * 3, rtol=1e-6)


GPUS = (HOPPER, "cuda:sm_80", "hip:gfx942")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942", "cpu"])
@pytest.mark.parametrize("size", [(64, 64, 128), (70, 66, 90)], ids=str)
def test_asynchronous_ops_of_targets_that_have_none(
    target: str, size: tuple[int, int, int]
) -> None:
    a, b, c, want = operands(*size)
    if target == "cpu":
        programs.in_flight(a, b, c)
    else:
        report = tilec.simulate(programs.in_flight, a, b, c, target=target)
        assert not report.findings, report
    np.testing.assert_allclose(c, want, atol=1e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
@pytest.mark.parametrize("size", [(64, 64, 96), (70, 66, 120), (1, 1, 1)], ids=str)
def test_sums_begin_anew_at_run_time(target: str, size: tuple[int, int, int]) -> None:
    a, b, c, _ = operands(*size)
    if target == "cpu":
        programs.cleared(a, b, c)
    else:
        assert not tilec.simulate(programs.cleared, a, b, c, target=target).findings
    last = (size[2] - 1) // 64 * 64
    want = a[:, last:].astype("float64") @ b[last:].astype("float64")
    np.testing.assert_allclose(c, want, atol=1e-4)


def test_products_stay_in_flight() -> None:
    ptx = text_of(programs.in_flight, "ptx")
    assert "wgmma.wait_group.sync.aligned 1" in ptx
    assert "cp.async.wait_group 2" in ptx


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(32, 64), (17, 36), (17, 33), (1, 1)])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_tiles_leave(target: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    y = np.zeros_like(x)
    if target == "cpu":
        programs.stored(x, y)
    else:
        assert not tilec.simulate(programs.stored, x, y, target=target).findings
    np.testing.assert_array_equal(y, x + 1)
    if target == HOPPER and shape[1] % 4 == 0:
        ptx = programs.stored.compile(x, y, target=target).stages["ptx"]
        assert "cp.async.bulk.tensor.2d.global.shared" in ptx


@tilec.kernel
def values(X: T.Tensor((256,), "int32"), Y: T.Tensor((256,), "int32"), n: T.int32):
    """Branches of groups hand on numbers of each thread."""
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding(0)
        s = T.alloc_shared((128,), "int32")
        t = T.alloc_shared((128,), "int32")
        x = 1
        if tx // 64 % 4 < 2:
            T.fill(s, n)
            x = tx + s[127 - tx]
        else:
            T.copy(X[128:256], t)
            x = t[255 - tx] * 2
        Y[tx] = x


def test_branches_hand_on_values() -> None:
    x, y = np.arange(256, dtype="int32"), np.zeros(256, "int32")
    report = tilec.simulate(values, x, y, 7, target=HOPPER)
    assert not report.findings, report
    np.testing.assert_array_equal(y[:128], np.arange(128) + 7)
    np.testing.assert_array_equal(y[128:], x[:127:-1] * 2)


@tilec.kernel
def no_mbarriers(X: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        bar = T.alloc_barrier(64)
        T.barrier_arrive(bar)
        T.barrier_wait(bar, 0)
        X[T.get_thread_binding(0)] = 1.0


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_targets_without_mbarriers_say_so(target: str) -> None:
    with pytest.raises(CompileError, match=f"{target} has no mbarriers") as caught:
        no_mbarriers.compile(tilec.spec((64,), "float32"), target=target)
    assert (
        caught.value.loc.line
        == no_mbarriers.compile.__self__.__wrapped__.__code__.co_firstlineno + 3
    )


@tilec.kernel
def scheduled(X: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        T.annotate_schedule(persistent=True)
        bar = T.alloc_barrier(64)
        T.barrier_arrive(bar)
        T.barrier_wait(bar, 0)
        X[T.get_thread_binding(0)] = 1.0


def test_schedules_that_tilec_would_make_are_refused() -> None:
    with pytest.raises(ResourceError, match="barriers or groups of threads of its own"):
        scheduled.compile(tilec.spec((64,), "float32"), target=HOPPER)


def of_one_group(X: T.Tensor((256, 64), "float32"), case: T.constexpr = ""):
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding(0)
        acc = T.alloc_fragment((64, 64), "float32")
        s = T.alloc_shared((64, 64), "float32")
        if case == "half a warp":
            if tx < 16:
                T.clear(s)
        elif case == "every other thread":
            if tx % 2 == 0:
                T.clear(s)
        elif case == "a thread's own":
            if X[tx, 0] > 0:
                T.clear(s)
        elif case == "two groups":
            T.clear(acc)
            with T.ws(0):
                T.copy(acc, X[0, 0])


GROUPS = {
    "half a warp": "threads 0 to 15: a group that works on tiles, or meets, is whole warps of 32",
    "every other thread": "threads that do not follow one another",
    "a thread's own": "T.fill needs every thread of its scope",
    "two groups": "acc is a fragment of 256 threads on line",
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_that_are_none(case: str) -> None:
    kernel = tilec.kernel(of_one_group)
    with pytest.raises(CompileError) as caught:
        kernel.compile(tilec.spec((256, 64), "float32"), case=case, target=HOPPER)
    assert GROUPS[case] in caught.value.message
    assert caught.value.hint and caught.value.loc is not None


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", HOPPER, "hip:gfx942"])
def test_a_proxy_fence_is_nothing_where_engines_are_not_asynchronous(target: str) -> None:
    @tilec.kernel
    def product(
        A: T.Tensor((64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            for i, j in T.Parallel(64, 64):
                a[i, j] = A[i, j] * 2
            T.copy(B, b)
            T.fence_proxy_async()
            T.clear(acc)
            T.gemm(a, b, acc)
            T.copy(acc, C)

    a, b, c, want = operands(64, 64, 64)
    run_compiled(product, target, a, b, c)
    np.testing.assert_allclose(c, 2 * want, atol=1e-3)
