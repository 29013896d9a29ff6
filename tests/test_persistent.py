"""T.Persistent by hand: every tile once, in groups, and pipelines whose rings live across tiles."""

import numpy as np
import pytest
from form_help import GPUS, SM90, aligned, close, lowered, on_cpu, on_threads, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.errors import CompileError
from tilec.ir.ops import For, MbarrierInit, Scope
from tilec.target import Target

M, N, K = T.dynamic("M, N, K")
TARGETS = pytest.mark.parametrize("target", GPUS, ids=lambda t: t.arch)


def visits(group, blocks, by_default):
    """Each tile of a 2-D domain says who visited it, and as whose how-manyth."""

    @tilec.kernel
    def count(X: T.Tensor((M, N), "int32"), Order: T.Tensor((M, N), "int32")):
        with T.Kernel(blocks, threads=32) as block:
            turn = 0
            for i, j in (
                T.Persistent([M, N], group_size=group)
                if by_default
                else T.Persistent([M, N], blocks, block, group_size=group)
            ):
                X[i, j] = X[i, j] + 1 + block * 1000
                Order[i, j] = turn * blocks + block
                turn += 1

    return count


@pytest.mark.parametrize("by_default", [True, False])
@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize(("m", "n", "blocks"), [(7, 5, 3), (1, 9, 4), (10, 1, 16), (4, 4, 1)])
def test_every_tile_once(m: int, n: int, blocks: int, group: int, by_default: bool) -> None:
    x, order = np.zeros((m, n), np.int32), np.full((m, n), -1, np.int32)
    visits(group, blocks, by_default)(x, order)
    assert (x % 1000 == 1).all()
    assert sorted(order.ravel()) == list(range(m * n))
    assert (x // 1000 == order % blocks).all()
    # the first dimension varies fastest, `group` rows of it at a time
    want = [
        (i, j)
        for top in range(0, m, group)
        for j in range(n)
        for i in range(top, min(top + group, m))
    ]
    assert [tuple(p) for p in np.argwhere(order >= 0)[np.argsort(order.ravel())]] == want


@tilec.kernel
def three_dimensions(X: T.Tensor((M, N, K), "int32")):
    with T.Kernel(5, threads=32) as block:
        for i, j, k in T.Persistent([M, N, K], 5, block, group_size=2):
            X[i, j, k] = X[i, j, k] + 1


@tilec.kernel
def one_dimension(X: T.Tensor((M,), "int32")):
    with T.Kernel(5, threads=32) as block:
        for i in T.Persistent([M], 5, block):
            X[i] = X[i] + i


def test_other_domains() -> None:
    x = np.zeros((3, 4, 5), np.int32)
    three_dimensions(x)
    assert (x == 1).all()
    y = np.zeros(13, np.int32)
    one_dimension(y)
    assert (y == np.arange(13)).all()


def walking(blocks, num_stages):
    def matmul(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(blocks, threads=128) as block:
            A_s = T.alloc_shared((64, 32), "float16")
            B_s = T.alloc_shared((32, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            for by, bx in T.Persistent([T.ceildiv(M, 64), T.ceildiv(N, 64)], blocks, block, 2):
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(K, 32), num_stages=num_stages):
                    T.copy(A[by * 64, k * 32], A_s)
                    T.copy(B[k * 32, bx * 64], B_s)
                    T.gemm(A_s, B_s, acc)
                T.copy(acc, C[by * 64, bx * 64])

    return matmul


@pytest.mark.covering(1)
@TARGETS
@pytest.mark.parametrize(("blocks", "stages", "k"), [(2, 3, 136), (7, 2, 33), (20, 4, 8)])
def test_pipelines_in_the_tile_loop(
    blocks: int, stages: int, k: int, target: Target, rng: np.random.Generator
) -> None:
    a, b = (aligned(rng.standard_normal(s).astype(np.float16)) for s in ((200, k), (k, 136)))
    held = {"A": a, "B": b, "C": aligned(np.full((200, 136), np.nan, np.float16))}
    want = a.astype(np.float64) @ b.astype(np.float64)
    kernel = walking(blocks, stages)
    if target is SM90:
        close(on_cpu(kernel, held)["C"], want)
    for _, _, got in on_threads(tile_func(kernel, held), target, held):
        close(got["C"], want)


def test_rings_live_across_tiles(rng: np.random.Generator) -> None:
    """The producer's loop over tiles holds no barrier's set-up: its ring runs on from tile to
    tile."""
    held = {n: aligned(np.ones((64, 64), np.float16)) for n in "ABC"}
    plans_seen = 0
    for plan, done in lowered(tile_func(walking(4, 3), held), SM90):
        (*scopes,) = [o for o in walk(done.body) if isinstance(o, Scope)]
        if not plan.specialise:
            continue
        plans_seen += 1
        assert {"producer", "consumer"} <= {o.name for o in scopes}
        for scope in scopes:
            inside = list(walk(scope.body))
            assert any(isinstance(o, For) and o.kind == "persistent" for o in inside)
            assert not any(isinstance(o, MbarrierInit) for o in inside)
    assert plans_seen


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("for i, j in T.Persistent([4, 4, 4], 2, b):", "the domain has 3 extents, the loop 2"),
        ("for i in T.Persistent(4, 2, b):", "not a list of extents"),
        ("for i in T.Persistent([4], 2, b, 0):", "group_size of T.Persistent must be"),
        ("for i in T.Persistent([4.5], 2, b):", "a bound of this loop is the float 4.5"),
    ],
)
def test_errors(loop: str, message: str, tmp_path, monkeypatch) -> None:
    (tmp_path / "bad_loop.py").write_text(
        "import tilec, tilec.language as T\n"
        "@tilec.kernel\n"
        "def bad(X: T.Tensor((64,), 'int32')):\n"
        "    with T.Kernel(2, threads=32) as b:\n"
        f"        {loop}\n"
        "            X[0] = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "bad_loop", raising=False)
    with pytest.raises(CompileError, match="T.Persistent") as caught:
        __import__("bad_loop").bad(np.zeros(64, np.int32))
    assert message in str(caught.value) and "bad_loop.py:5" in str(caught.value)
