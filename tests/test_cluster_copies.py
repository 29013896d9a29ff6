"""T.copy_cluster: a shared tile goes to another block of the cluster, by asynchronous copies or by
its threads; one tile of a tensor goes to several blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sim_bench import Bench
from simulated import run
from test_tma_scopes import given

import tilec
import tilec.language as T
from tilec.ir.instr import cluster, sync
from tilec.sim.buffers import SHARED_BASE

pytestmark = pytest.mark.usefixtures("unassembled")

SM90 = "cuda:sm_90a"
TARGETS = [SM90, "cuda:sm_80", "hip:gfx942", "cpu"]
N, R = T.dynamic("N, R")


def ring(
    shape: tuple[int, ...],
    dtype: str = "float32",
    blocks: int = 2,
    how: str = "barrier",
    part: Any = None,
    threads: int = 64,
) -> Any:
    """In each of R rounds every block sends the tile of its round to the next block of its cluster,
    which writes it to its own place; `part`: columns that are sent."""
    d0, d1, d2 = shape = (1,) * (3 - len(shape)) + shape
    lo, hi = part or (0, d2)

    @tilec.kernel
    def passed(A: T.Tensor((R, N, d0, d1, d2), dtype), B: T.Tensor((R, N, d0, d1, d2), dtype)):
        with T.Kernel(N, threads=threads, cluster_dims=blocks) as b:
            sent, got = T.alloc_shared(shape, dtype), T.alloc_shared(shape, dtype)
            bar = T.alloc_cluster_barrier([1])
            T.clear(got)
            T.cluster_sync()
            to = (T.block_rank_in_cluster() + 1) % blocks
            for k in T.serial(R):
                T.copy(A[k, b, 0, 0, 0], sent)
                if how == "barrier":
                    T.copy_cluster(
                        sent[0:d0, 0:d1, lo:hi],
                        got[0:d0, 0:d1, lo:hi],
                        dst_block=to,
                        remote_barrier=bar,
                    )
                    T.mbarrier_wait_parity(bar, k)
                else:
                    T.copy_cluster(sent[0:d0, 0:d1, lo:hi], got[0:d0, 0:d1, lo:hi], dst_block=to)
                    if how == "met":
                        T.cluster_sync()
                T.copy(got, B[k, b, 0, 0, 0])
                if how != "alone":
                    T.cluster_sync()

    return passed


def rotated(a: np.ndarray, blocks: int, columns: slice = slice(None)) -> np.ndarray:
    """What each block has got in each round."""
    n = np.arange(a.shape[1])
    got = np.zeros_like(a)
    got[..., columns] = a[:, n - n % blocks + (n - 1) % blocks][..., columns]
    return got


def sends(kernel: Any, *arrays: np.ndarray) -> tuple[int, int]:
    """Asynchronous copies in the PTX, and stores to another block."""
    ptx = kernel.compile(*arrays, target=SM90).stages["ptx"]
    return ptx.count("cp.async.bulk.shared::cluster.shared::cta"), ptx.count("st.shared::cluster")


CASES = {
    # shape, dtype, blocks, how, columns: asynchronous copies
    "one piece": (((16, 32), "float32", 2, "barrier", None), 1),
    "a vector": (((256,), "float16", 4, "barrier", None), 1),
    "bytes": (((3, 48), "int8", 2, "barrier", None), 1),
    "rows": (((8, 32), "float32", 2, "barrier", (0, 16)), 8),
    "rows of three dimensions": (((2, 4, 32), "float16", 2, "barrier", (8, 32)), 8),
    "an odd length": (((127,), "float32", 2, "barrier", None), 0),
    "odd rows": (((4, 64), "float32", 2, "barrier", (0, 31)), 0),
    "odd halves": (((5, 7), "float16", 2, "barrier", None), 0),
    "more rows than pieces": (((80, 8), "float32", 2, "barrier", (0, 4)), 0),
    "no barrier": (((16, 32), "float32", 8, "met", None), 0),
    "no barrier, bytes": (((130,), "uint8", 2, "met", None), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_tiles_go_round(name: str, rng: np.random.Generator) -> None:
    (shape, dtype, blocks, how, part), count = CASES[name]
    kernel = ring(shape, dtype, blocks, how, part)
    shape = (1,) * (3 - len(shape)) + shape
    a = rng.integers(0, 99, (3, 8, *shape)).astype(dtype)
    b = np.full_like(a, 77)
    report = tilec.simulate(kernel, a, b, target=SM90)
    assert report.ok, report
    np.testing.assert_array_equal(b, rotated(a, blocks, slice(*part or (None,))))
    copies, stores = sends(kernel, a, b)
    assert (copies, stores > 0) == (count, count == 0)


@pytest.mark.parametrize("how, kind", [("alone", "overwritten|data race"), ("unmet", "data race")])
def test_what_nobody_orders_is_found(how: str, kind: str, rng: np.random.Generator) -> None:
    a = rng.standard_normal((3, 2, 1, 16, 32)).astype(np.float32)
    report = tilec.simulate(ring((16, 32), how=how), a, np.zeros_like(a), target=SM90)
    assert any(word in str(report) for word in kind.split("|")), report


@tilec.kernel
def without_meeting(A: T.Tensor((R, 2, 16, 32), "float32"), B: T.Tensor((R, 2, 16, 32), "float32")):
    """The next tile may come before this one has been read."""
    with T.Kernel(2, threads=64, cluster_dims=2) as b:
        sent, got = T.alloc_shared((16, 32), "float32"), T.alloc_shared((16, 32), "float32")
        bar = T.alloc_cluster_barrier([1])
        for k in T.serial(R):
            T.copy(A[k, b, 0, 0], sent)
            T.copy_cluster(sent, got, dst_block=1 - b, remote_barrier=bar)
            T.mbarrier_wait_parity(bar, k)
            T.copy(got, B[k, b, 0, 0])


def test_the_next_tile_may_come_too_soon() -> None:
    a = np.ones((3, 2, 16, 32), np.float32)
    report = tilec.simulate(without_meeting, a, np.zeros_like(a), target=SM90)
    assert "overwritten before read" in str(report), report


def test_what_it_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrival with the bytes, the copy, a fence in front of them and in front of the meeting
    that gives the tile free; the blocks begin and end together."""
    monkeypatch.undo()  # the fixture that leaves out the assembler
    a = np.zeros((3, 2, 1, 16, 32), np.float32)
    made = ring((16, 32)).compile(a, a, target=SM90)
    assert made.resources.registers
    ptx = made.stages["ptx"]
    at = [
        ptx.index(word)
        for word in (
            "barrier.cluster.arrive",
            "arrive.expect_tx.release.cluster",
            "cp.async.bulk.sh",
        )
    ]
    assert at == sorted(at) and ptx.count("barrier.cluster.wait") == 4
    text = made.stages["insert_sync"]
    send = text.index("cluster_copy %")
    assert "engine=tma" in text[send:].split("\n")[0]
    assert "proxy_fence" in text[:send] and "proxy_fence" in text[send : text.rindex("cluster_bar")]


@tilec.kernel
def slots(A: T.Tensor((N, 16, 64), "float16"), B: T.Tensor((N, 16, 64), "float16")):
    """Two groups of threads: one sends tiles from a ring into a ring, the other takes them out."""
    with T.Kernel(2, threads=256, cluster_dims=2) as b:
        sent, got = T.alloc_shared((2, 16, 64), "float16"), T.alloc_shared((2, 16, 64), "float16")
        full, free = T.alloc_cluster_barrier([1] * 2), T.alloc_cluster_barrier([128] * 2)
        if T.get_warp_group_idx() == 0:
            if b == 0:
                for k in T.serial(N):
                    T.mbarrier_wait_parity(free[k % 2], k // 2 + 1)
                    T.copy(A[k, 0, 0], sent[k % 2, :, :])
                    T.copy_cluster(
                        sent[k % 2, :, :], got[k % 2, :, :], dst_block=1, remote_barrier=full[k % 2]
                    )
        else:
            if b == 1:
                for k in T.serial(N):
                    T.mbarrier_wait_parity(full[k % 2], k // 2)
                    T.copy(got[k % 2, :, :], B[k, 0, 0])
                    T.mbarrier_arrive(free[k % 2], 0)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_slots_of_rings(n: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((n, 16, 64)).astype(np.float16)
    b = np.zeros_like(a)
    report = tilec.simulate(slots, a, b, target=SM90)
    assert report.ok, report
    np.testing.assert_array_equal(b, a)
    assert sends(slots, a, b) == (1, 0)


# --- one tile for several blocks -----------------------------------------------------------------


@tilec.kernel
def several(A: T.Tensor((64, N), "float32"), B: T.Tensor((64, N), "float32"), mask: T.constexpr):
    with T.Kernel(2, 4, threads=64, cluster_dims=(2, 2)) as (x, y):
        tile = T.alloc_shared((16, 32), "float32")
        T.copy_cluster(A[y * 16, x * 32], tile, cluster_mask=mask)
        T.copy(tile, B[y * 16, x * 32])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mask", [0b11, 0b1010, 0b1111])
def test_one_tile_for_several_blocks(mask: int, target: str, rng: np.random.Generator) -> None:
    a = rng.standard_normal((64, 61)).astype(np.float32)
    b = np.zeros_like(a)
    run(several, target, a, b, mask=mask)
    np.testing.assert_array_equal(b, given(a, mask, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str, torch: Any) -> None:
    """264 blocks, and rounds whose numbers differ."""
    (shape, dtype, blocks, how, part), _ = CASES[name]
    kernel = ring(shape, dtype, blocks, how, part)
    shape = (1,) * (3 - len(shape)) + shape
    for step in range(50):
        a = (np.arange(4 * 264 * np.prod(shape)) * 7 + step).reshape(4, 264, *shape) % 101
        a = a.astype(dtype)
        y = torch.full(a.shape, 77, dtype=getattr(torch, dtype), device="cuda")
        kernel(torch.from_numpy(a).cuda(), y)
        want = rotated(a, blocks, slice(*part or (None,)))
        np.testing.assert_array_equal(y.cpu().numpy(), want)


@pytest.mark.gpu
def test_slots_on_a_gpu(torch: Any) -> None:
    for step in range(200):
        a = (np.arange(40 * 16 * 64) * 3 + step).reshape(40, 16, 64) % 999
        y = torch.zeros((40, 16, 64), dtype=torch.float16, device="cuda")
        slots(torch.from_numpy(a.astype(np.float16)).cuda(), y)
        np.testing.assert_array_equal(y.cpu().numpy(), a.astype(np.float16))


# --- rows of the simulator -----------------------------------------------------------------------

GATE = np.int32(SHARED_BASE + 4096)
ONE = np.int32(1)


def meet(bench: Bench) -> None:
    waits = [bench.run(bench.active(block=r), cluster.CLUSTER_BARRIER) for r in range(2)]
    for w in waits:
        w.finish(w.ready())


@pytest.mark.parametrize("bytes", cluster.STORE_BYTES)
@pytest.mark.parametrize("met", [True, False])
def test_stores_to_another_block(bytes: int, met: bool) -> None:
    bench = Bench(64, blocks=2)
    active = bench.active(block=0)
    words = [np.arange(64, dtype=np.int32) * 7 + w for w in range(max(bytes // 4, 1))]
    at = (SHARED_BASE + bytes * np.arange(64)).astype(np.int32)
    bench.run(active, cluster.cluster_store(bytes), at, ONE, *words)
    if met:
        meet(bench)
    held = bench.bytes(1)[: 64 * bytes].reshape(64, bytes)
    want = np.stack(words, -1).view(np.uint8)[:, :bytes]
    np.testing.assert_array_equal(held, want)
    bench.run(bench.active(block=1), cluster.cluster_load(1), np.int32(SHARED_BASE), ONE)
    assert bench.kinds == ([] if met else ["data race"])
    bench.run(active, cluster.cluster_store(4), np.int32(SHARED_BASE), np.int32(2), words[0])
    assert "out of bounds" in bench.kinds


def sending(fence: bool) -> Bench:
    """Thread 0 of block 0 sends 64 bytes to block 1, whose barrier counts them."""
    bench = Bench(32, blocks=2)
    for r in range(2):
        one = bench.active([0], r)
        bench.run(one, sync.mbarrier_init(1), GATE)
        bench.run(one, sync.MBARRIER_INIT_FENCE)
    meet(bench)
    at = np.int32(SHARED_BASE)
    writer = bench.active([0], 0)
    bench.put(0, np.arange(64, dtype=np.uint8), writer)
    if not fence:
        words = [np.zeros(1, np.int32)]
        bench.run(writer, cluster.cluster_store(4), at, np.int32(0), *words)
    bench.run(writer, cluster.expect_at(64), GATE, ONE)
    bench.run(writer, cluster.cluster_send(64), at, at, GATE, ONE)
    return bench


@pytest.mark.parametrize("wait", [True, False])
def test_copies_to_another_block(wait: bool) -> None:
    bench = sending(True)
    reader = bench.active(block=1)
    if wait:
        bench.pass_(reader, cluster.MBARRIER_WAIT_ACQUIRE, GATE, np.int32(0))
    bench.run(reader, cluster.cluster_load(4), np.int32(SHARED_BASE), ONE)
    assert bench.kinds == ([] if wait else ["read before wait"])
    np.testing.assert_array_equal(bench.bytes(1)[:64], np.arange(64))


def test_what_is_copied_must_be_fenced() -> None:
    assert sending(False).kinds == ["missing proxy fence"]


@pytest.mark.parametrize("end", ["read", "met", "soon"])
def test_a_block_stays_until_its_copy_has_been_read(end: str) -> None:
    bench = sending(True)
    reader = bench.active(block=1)
    if end != "soon":
        bench.pass_(reader, cluster.MBARRIER_WAIT_ACQUIRE, GATE, np.int32(0))
    if end == "met":
        meet(bench)
    bench.blocks[0].barriers.finish()
    assert bench.kinds == ([] if end == "met" else ["read before wait"])


def test_a_bulk_copy_must_be_aligned() -> None:
    bench = sending(True)
    at = np.int32(SHARED_BASE + 8)
    bench.run(bench.active([0]), cluster.cluster_send(16), at, at, GATE, ONE)
    assert "misaligned access" in bench.kinds


# --- mistakes ------------------------------------------------------------------------------------

ERRORS = {
    "no block": ("T.copy_cluster(s, d)", "takes one of dst_block and cluster_mask"),
    "both": ("T.copy_cluster(A[0:64], d, dst_block=1, cluster_mask=3)", "takes one of dst_block"),
    "no such block": ("T.copy_cluster(s, d, dst_block=2)", "dst_block of T.copy_cluster is 2; the"),
    "a float": ("T.copy_cluster(s, d, dst_block=0.5)", "dst_block of T.copy_cluster is 0.5"),
    "a tensor": ("T.copy_cluster(A[0:64], d, dst_block=1)", "goes from shared memory to that of"),
    "a fragment": ("T.copy_cluster(s, f, dst_block=1)", "the destination f (fragment (64,)"),
    "dtype": ("T.copy_cluster(s, h, dst_block=1)", "T.copy_cluster converts nothing"),
    "shape": ("T.copy_cluster(s[0:32], d, dst_block=1)", "64"),
    "barrier": ("T.copy_cluster(s, d, dst_block=1, remote_barrier=s)", "not a barrier"),
    "mask": ("T.copy_cluster(A[0:64], d, cluster_mask=4)", "of T.copy_cluster is 0b100; a cluster"),
    "mask of tiles": ("T.copy_cluster(s, d, cluster_mask=3)", "brings a tile of a tensor to sha"),
    "mask, barrier": (
        "T.copy_cluster(A[0:64], d, cluster_mask=3, remote_barrier=bar)",
        "nothing is counted on remote_barrier",
    ),
    "parallel": ("for i in T.Parallel(4): T.copy_cluster(s, d, dst_block=1)", "T.Parallel"),
    "some threads": (
        "if T.get_thread_binding() < 5: T.copy_cluster(s, d, dst_block=1)",
        "holds for threads 0 to 4",
    ),
}  # fmt: skip


def kernel_of(line: str, tmp_path: Any, dims: str = ", cluster_dims=2") -> tuple[Any, int]:
    source = (
        'import tilec, tilec.language as T\n@tilec.kernel\ndef k(A: T.Tensor((64,), "float32")):\n'
        f"    with T.Kernel(8, threads=32{dims}):\n"
        '        s, d = T.alloc_shared((64,), "float32"), T.alloc_shared((64,), "float32")\n'
        '        f, h = T.alloc_fragment((64,), "float32"), T.alloc_shared((64,), "float16")\n'
        + ("        bar = T.alloc_cluster_barrier(1)\n" if "bar" in line else "")
        + f"        {line}\n"
    )
    path = tmp_path / "k.py"
    path.write_text(source)
    scope: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), scope)
    return scope["k"], source.count("\n")


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Any) -> None:
    line, message = ERRORS[name]
    kernel, last = kernel_of(line, tmp_path)
    with pytest.raises(tilec.CompileError) as e:
        kernel.compile(np.zeros(64, np.float32), target=SM90)
    assert message in str(e.value), e.value
    assert e.value.loc.line == last


def test_no_cluster(tmp_path: Any) -> None:
    kernel, last = kernel_of("T.copy_cluster(s, d, dst_block=0)", tmp_path, "")
    with pytest.raises(tilec.CompileError, match="a kernel that is not launched in clusters") as e:
        kernel.compile(np.zeros(64, np.float32), target=SM90)
    assert e.value.loc.line == last


@pytest.mark.parametrize("target", TARGETS[1:])
def test_targets_without_clusters_say_so(target: str, tmp_path: Any) -> None:
    kernel, last = kernel_of("T.copy_cluster(s, d, dst_block=0)", tmp_path)
    with pytest.raises(tilec.CompileError, match="no clusters whose blocks could copy to one") as e:
        kernel.compile(np.zeros(64, np.float32), target=target)
    assert e.value.loc.line == last
