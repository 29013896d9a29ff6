"""T.atomic_*(…, use_tma=True): a shared tile, or what a matrix instruction has left, is combined
with a tensor by TMA; by threads where it cannot."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sim_bench import Bench
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.errors import PerformanceWarning
from tilec.ir.instr import memory as moves
from tilec.ir.instr.memory import TMA_REDUCTIONS
from tilec.ir.llvm import Inst
from tilec.ir.types import INT32
from tilec.sim.buffers import SHARED_BASE
from tilec.sim.program import LoadStore
from tilec.sim.tensors import TensorMap

pytestmark = pytest.mark.usefixtures("unassembled")

SM90 = "cuda:sm_90a"
TARGETS = [SM90, "cuda:sm_80", "hip:gfx942", "cpu"]
M, N, K, P = T.dynamic("M, N, K, P")
HOW = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
       "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip


def lowered(kernel: Any, *arrays: Any, **given: Any) -> str:
    return str(kernel.compile(*arrays, target=SM90, **given).stages["lower_parallel"])


def reducing(kind: str, dtype: str) -> Any:
    """Blocks that have parts of one sum (or minimum, …) write to the same elements."""
    update = getattr(T, f"atomic_{kind}")

    @tilec.kernel
    def reduced(A: T.Tensor((P, M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 16), P, threads=64) as (bx, by, bz):
            tile = T.alloc_shared((16, 32), dtype)
            T.copy(A[bz, by * 16, bx * 32], tile)
            for i, j in T.Parallel(16, 32):
                tile[i, j] = tile[i, j] + 1
            update(C[by * 16, bx * 32], tile, use_tma=True)

    return reduced


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    low = 0 if dtype.startswith("u") else -4
    return rng.integers(low, 4, shape).astype(getattr(ml_dtypes, dtype, None) or dtype)


def wanted(kind: str, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    made = c.copy()
    for part in a:
        made = HOW[kind](made, (part + 1).astype(c.dtype)).astype(c.dtype)
    return made


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(16, 32), (35, 72), (1, 8), (33, 40)])
def test_ragged_shapes(shape: tuple[int, int], target: str, rng: np.random.Generator) -> None:
    """TMA leaves out what is outside of the tensor, and does not touch what is beside it."""
    a, c = numbers(rng, "float32", 3, *shape), numbers(rng, "float32", *shape)
    want = wanted("add", a, c)
    run(reducing("add", "float32"), target, a, c)
    np.testing.assert_array_equal(c, want)


CASES = [(kind, dtype.name) for kind, dtypes in TMA_REDUCTIONS.items() for dtype in dtypes]


@pytest.mark.parametrize("kind, dtype", CASES)
def test_kinds_and_dtypes(kind: str, dtype: str, rng: np.random.Generator) -> None:
    a, c = numbers(rng, dtype, 3, 20, 48), numbers(rng, dtype, 20, 48)
    want, kernel = wanted(kind, a, c), reducing(kind, dtype)
    run(kernel, SM90, a, c)
    np.testing.assert_array_equal(c, want)
    text = lowered(kernel, a, c)
    assert text.count("tma_store %") == text.count(f"reduction={kind}") == 1
    assert "mem_atomic" not in text
    ptx = kernel.compile(a, c, target=SM90).stages["ptx"]
    at = [ptx.index(word) for word in ("fence.proxy.async", f"shared::cta.{kind}.tile", "commit_")]
    assert at == sorted(at) and "bulk.wait_group.read 0" in ptx


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_assembles(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the fixture that leaves out the assembler
    specs = tilec.spec((3, 64, 64), dtype), tilec.spec((64, 64), dtype)
    for kind, dtypes in TMA_REDUCTIONS.items():
        if dtype in [d.name for d in dtypes]:
            made = reducing(kind, dtype).compile(*specs, target=SM90)
            assert made.resources.registers


@tilec.kernel
def split_k(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    shared: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), 3, threads=128) as (bx, by, bz):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        out = T.alloc_shared((64, 64), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        for _ in T.serial(2):
            T.clear(acc)
            each = T.ceildiv(T.ceildiv(K, 32), 3)
            for k in T.Pipelined(each, num_stages=2):
                T.copy(A[by * 64, (bz * each + k) * 32], a)
                T.copy(B[(bz * each + k) * 32, bx * 64], b)
                T.gemm(a, b, acc)
            if shared:
                T.copy(acc, out)
                T.atomic_add(C[by * 64, bx * 64], out, use_tma=True)
            else:
                T.atomic_add(C[by * 64, bx * 64], acc, use_tma=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shared", [True, False])
def test_split_k(shared: bool, target: str, rng: np.random.Generator) -> None:
    """The tile is filled again while TMA may still read what was there; accumulators are staged."""
    m, n, k = 70, 40, 200
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.ones((m, n), np.float32)
    run(split_k, target, a, b, c, shared=shared)
    np.testing.assert_array_equal(c, 1 + 2 * (a.astype(np.float64) @ b.astype(np.float64)))
    if target == SM90:
        text = lowered(split_k, a, b, c, shared=shared)
        assert text.count("tma_store %") == text.count("reduction=add") > 0
        assert "mem_atomic" not in text and "proxy_fence" in text and "read=false" not in text


SCHEDULES: list[dict[str, Any]] = [
    {"consumers": "pingpong"}, {"persistent": True}, {"specialise": False}, {"cluster": (2, 1)},
    {"split": 2}, {"persistent": True, "cluster": (1, 2)},
]  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shared", [True, False])
def test_schedules(schedule: dict[str, Any], shared: bool, rng: np.random.Generator) -> None:
    @tilec.kernel
    def sums(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")  # noqa: E501
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), 2, threads=128) as (bx, by, bz):
            T.annotate_schedule(**schedule)
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
            out = T.alloc_shared((64, 64), "float32")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64)):
                T.copy(A[by * 64, (k * 2 + bz) * 32], a)
                T.copy(B[bx * 64, (k * 2 + bz) * 32], b)
                T.gemm(a, b, acc, transpose_B=True)
            if shared:
                T.copy(acc, out)
            T.atomic_add(C[by * 64, bx * 64], out if shared else acc, use_tma=True)

    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((150, 96), (136, 96)))
    c = np.ones((150, 136), np.float32)
    run(sums, SM90, a, b, c)
    np.testing.assert_array_equal(c, 1 + a.astype(np.float64) @ b.astype(np.float64).T)
    assert "reduction=add" in lowered(sums, a, b, c)


@tilec.kernel
def by_groups(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    shared: T.constexpr,
):
    """Two groups of threads have every other step of each sum."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=256) as (bx, by):
        acc = T.alloc_fragment((64, 64), "float32")
        for g in (0, 1):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            out = T.alloc_shared((64, 64), "float32")
            with T.ws(g):
                for k in T.serial(T.ceildiv(K, 64)):
                    T.copy(A[by * 64, (k * 2 + g) * 32], a)
                    T.copy(B[(k * 2 + g) * 32, bx * 64], b)
                    T.gemm(a, b, acc, clear_accum=True)
                    if shared:
                        T.copy(acc, out)
                        T.atomic_add(C[by * 64, bx * 64], out, use_tma=True)
                    else:
                        T.atomic_add(C[by * 64, bx * 64], acc, use_tma=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:2])  # others have no groups of 128 threads
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
def test_groups_of_threads(shared: bool, target: str, rng: np.random.Generator) -> None:
    """A group's registers are not staged."""
    m, n, k = 100, 72, 170
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.ones((m, n), np.float32)
    run(by_groups, target, a, b, c, shared=shared)
    np.testing.assert_array_equal(c, 1 + a.astype(np.float64) @ b.astype(np.float64))
    if target == SM90:
        text = lowered(by_groups, a, b, c, shared=shared)
        assert ("mem_atomic" in text, "reduction=add" in text) == (not shared, shared)


@pytest.mark.gpu
def test_on_a_gpu(torch: Any, rng: np.random.Generator) -> None:
    """Also beside what threads make of it; the numbers name the round."""
    for kind, dtype in CASES:
        kernel, kinds = reducing(kind, dtype), getattr(ml_dtypes, dtype, None) or dtype
        if dtype == "bfloat16":
            continue  # which torch does not take from NumPy
        for shape in ((20, 48), (129, 72)):
            a, c = numbers(rng, dtype, 3, *shape), numbers(rng, dtype, *shape)
            x, y = torch.from_numpy(a).cuda(), torch.from_numpy(c).cuda()
            kernel(x, y)
            np.testing.assert_array_equal(y.cpu().numpy().astype(kinds), wanted(kind, a, c))
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((500, 480), (480, 328)))
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    product = a.astype(np.float64) @ b.astype(np.float64)
    for step in range(200):
        z = torch.full((500, 328), float(step), device="cuda")
        split_k(x, y, z, shared=step % 2 == 0)
        np.testing.assert_array_equal(z.cpu().numpy(), step + 2 * product)


# --- what threads do -----------------------------------------------------------------------------


@tilec.kernel
def other(
    A: T.Tensor((32, N), "float32"),
    C: T.Tensor((32, N), "float32"),
    D: T.Tensor((32, N), "float64"),
    O: T.Tensor((32, 64), "float32"),
    V: T.Tensor((N,), "float32"),
    how: T.constexpr,
):
    with T.Kernel(2, threads=64):
        tile, whole = T.alloc_shared((32, 64), "float32"), T.alloc_shared((32, 64), "float64")
        own, row = T.alloc_shared((32, 64), "float32"), T.alloc_shared((64,), "float32")
        held = T.alloc_fragment((32, 64), "float32")
        T.copy(A[0, 0], tile)
        if how == "dtype":
            T.copy(A[0, 0], whole)
            T.atomic_add(D[0, 0], whole, use_tma=True)
        elif how == "rank":
            T.copy(A[0, 0:64], row)
            T.atomic_add(V[0:64], row, use_tma=True)
        elif how == "place":
            T.atomic_add(C[0, 2], tile, use_tma=True)
        elif how == "read too":
            T.atomic_add(C[0, 0], tile, use_tma=True)
            T.copy(C[0, 0], tile)
            T.copy(tile, O)
        elif how == "order":
            T.atomic_add(C[0, 0], tile, use_tma=True, memory_order="release")
        elif how == "fragment":
            T.copy(tile, held)
            T.atomic_add(C[0, 0], held, use_tma=True)
        elif how == "part":
            T.atomic_add(C[0:16, 0:64], tile[0:16, 0:64], use_tma=True)
        elif how == "converts":
            T.atomic_add(D[0, 0], tile, use_tma=True)
        elif how == "shared":
            T.clear(own)
            T.atomic_add(own, tile, use_tma=True)
            T.copy(own, O)


REASONS = {
    "dtype": "it has no add of float64",
    "rank": "it writes tensors of 2 to 5 dimensions",
    "place": "from such a multiple on; of C that is not known",
    "read too": "the kernel reads or writes C otherwise, too",
    "order": "memory_order puts in order what threads do",
    "fragment": "its registers cannot be staged",
    "part": "it cannot read tile as it lies in shared memory, whole and as float32",
    "converts": "it has no add of float64",
    "shared": "own is in shared memory",
}


def arrays(columns: int = 64) -> list[np.ndarray]:
    a = np.arange(32 * columns, dtype=np.float32).reshape(32, columns)
    made = [a, a * 0, a.astype(np.float64) * 0, np.zeros((32, 64), np.float32)]
    return [*made, np.zeros(columns, np.float32)]


@pytest.mark.parametrize("how", REASONS)
def test_what_tma_cannot_do_is_said_and_done_by_threads(how: str) -> None:
    line = next(n for n, s in enumerate(open(__file__), 1) if f'how == "{how}":' in s)
    given = arrays()
    with pytest.warns(PerformanceWarning, match="use_tma=True, but threads do") as seen:
        made = other.compile(*given, how=how, target=SM90)
    (said,) = seen
    assert REASONS[how] in str(said.message) and said.lineno in range(line + 1, line + 4)
    assert "reduction=" not in made.stages["lower_parallel"]
    assert "engine=threads" in made.stages["select_copies"].split("atomic_tile")[1].split("\n")[0]


def test_a_ragged_tensor_is_done_by_threads(rng: np.random.Generator) -> None:
    """Rows that end within 16 bytes: TMA would write behind them."""
    a, c = numbers(rng, "float32", 2, 20, 44)[:, :, :42], numbers(rng, "float32", 20, 44)[:, :42]
    want, kernel = wanted("add", a, c), reducing("add", "float32")
    run(kernel, SM90, a, c)
    np.testing.assert_array_equal(c, want)
    assert "mem_atomic" in lowered(kernel, a, c)


@pytest.mark.parametrize("kind", ["and", "or", "xor"])
def test_bits_of_64_are_done_by_threads(kind: str, rng: np.random.Generator) -> None:
    """PTX has the instruction, and an H100 stops at it."""
    a, c = numbers(rng, "int64", 3, 20, 48), numbers(rng, "int64", 20, 48)
    want, kernel = wanted(kind, a, c), reducing(kind, "int64")
    with pytest.warns(PerformanceWarning, match="threads do"):
        run(kernel, SM90, a, c)
    np.testing.assert_array_equal(c, want)
    assert "mem_atomic" in lowered(kernel, a, c)


@pytest.mark.parametrize("target", TARGETS[1:])
def test_other_targets_say_so_in_the_dump_alone(target: str) -> None:
    kernel = reducing("add", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = kernel.compile(*(tilec.spec(s, "float32") for s in ((3, 32, 32), (32, 32))), target=target)  # fmt: skip  # noqa: E501
    if target != "cpu":
        assert "add, engine=threads" in made.stages["select_copies"]


# --- races ---------------------------------------------------------------------------------------


def box(dtype: Any = np.int32) -> tuple[Bench, Any]:
    """A tensor of 16x32 ones, a map of all of it, and a tile of threes at byte 0."""
    a = np.ones((16, 32), dtype)
    bench = Bench(64, arrays={"A": a}, blocks=2)
    bench.maps.append(
        TensorMap(bench.tensors[0], bench.tensors[0].address, (32, 16), (128,), (32, 16), 0, INT32)
    )
    for block in (0, 1):
        bench.put(0, np.full((16, 32), 3, dtype), bench.active(block=block))
    return bench, a


def start(bench: Bench, lane: int, block: int = 0, reduction: str = "add") -> None:
    words = np.int32(0), np.int32(0), np.int32(SHARED_BASE)
    row = moves.tma_store(2, False, "", reduction)
    one = bench.active([lane], block)
    bench.run(one, row, np.int64(0), *words)
    bench.run(one, moves.TMA_STORE_COMMIT)


def test_reductions_of_several_threads_and_blocks_are_no_race() -> None:
    bench, a = box()
    for lane, block in ((0, 0), (33, 0), (5, 1)):
        start(bench, lane, block)
    assert not bench.kinds
    np.testing.assert_array_equal(a, np.full_like(a, 1 + 3 * 3))


def test_a_plain_store_beside_one_is_a_race() -> None:
    bench, _ = box()
    start(bench, 0)
    start(bench, 0, 1, reduction="")
    assert bench.kinds == ["data race"]


ACCESS = LoadStore(Inst("load", None, (), ""), "global", "i32", 1, False, 4, 4)


@pytest.mark.parametrize("wait", ["no", "read", "all"])
@pytest.mark.parametrize("write", [False, True])
def test_a_plain_access_beside_one(wait: str, write: bool) -> None:
    """Only who has waited until it is complete, not until it has read its tile, may look."""
    bench, _ = box()
    start(bench, 0)
    one = bench.active([0])
    if wait != "no":
        bench.run(one, moves.tma_store_wait(0, wait == "read"))
    one.inst = Inst("store" if write else "load", None, (), "")
    at = np.array([bench.tensors[0].address])
    if write:
        one.block.memory.store(one, at, np.array([7], np.int32), ACCESS)
    else:
        one.block.memory.load(one, at, ACCESS)
    wrong = "data race" if write else "read before wait"
    assert bench.kinds == ([] if wait == "all" else [wrong])
