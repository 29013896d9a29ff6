"""T.Pipelined(order=, stage=): statements in the user's order, copies as far ahead as their stages
say; T.Persistent; and what turns overlap off."""

import numpy as np
import pytest
from form_help import GPUS, SM90, Arrays, aligned, close, lowered, on_cpu, on_threads, tile_func
from frontend_help import ops

import tilec.language as T
from tilec.ir.core import Func, walk
from tilec.ir.errors import CompileError
from tilec.ir.ops import Alloc, Copy, For, Gemm, TmaLoad
from tilec.target import Target

M, N, K = T.dynamic("M, N, K")
TARGETS = pytest.mark.parametrize("target", GPUS, ids=lambda t: t.arch)


def arranged(order, stage, num_stages=None, stop_early=False, group=None):
    def matmul(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        bias: T.Tensor((M,), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            A_s = T.alloc_shared((64, 32), "float16")
            B_s = T.alloc_shared((32, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.clear(total)
            for k in T.Pipelined(0, T.ceildiv(K, 32), num_stages, order, stage, group=group):
                if stop_early:
                    if k * 32 >= K - 8:
                        break
                T.copy(A[by * 64, k * 32], A_s)
                T.copy(B[k * 32, bx * 64], B_s)
                for i, j in T.Parallel(64, 64):
                    total[i, j] += bias[by * 64 + i]
                T.gemm(A_s, B_s, acc)
            for i, j in T.Parallel(64, 64):
                acc[i, j] += total[i, j]
            T.copy(acc, C[by * 64, bx * 64])

    return matmul


def arrays(rng: np.random.Generator, k: int = 136) -> tuple[Arrays, np.ndarray]:
    a, b = (aligned(rng.standard_normal(s).astype(np.float16)) for s in ((70, k), (k, 72)))
    bias = aligned(rng.standard_normal(70).astype(np.float16))
    want = a.astype(np.float64) @ b.astype(np.float64) + -(-k // 32) * bias[:, None].astype(float)
    c = aligned(np.full((70, 72), np.nan, np.float32))
    return {"A": a, "B": b, "bias": bias, "C": c}, want


def ahead(done: Func) -> dict[str, int]:
    """Versions of each shared buffer that a producer's boxes fill."""
    if not any(isinstance(o, TmaLoad) for o in walk(done.body)):
        return {}
    return {
        o.result.name: o.type.stages
        for o in walk(done.body)
        if isinstance(o, Alloc) and o.type.space == "shared" and o.type.stages > 1
    }


CHOICES = {
    "stages": ((), (0, 0, 1, 1)),
    "far": ((), (0, 0, 2, 2)),
    "one ahead": ((), (0, 2, 2, 2)),
    "none": ((), (0, 0, 0, 0)),
    "order": ((1, 0, 3, 2), ()),
    "both": ((3, 0, 2, 1), (0, 0, 2, 2)),
    "products first": ((2, 3, 1, 0), (0, 0, 1, 1)),
    "left free": ((-1, -1, 1, 0), (-1, -1, 1, 1)),
}


@pytest.mark.covering(1)
@TARGETS
@pytest.mark.parametrize("choice", CHOICES)
def test_numbers(choice: str, target: Target, rng: np.random.Generator) -> None:
    held, want = arrays(rng)
    kernel = arranged(*CHOICES[choice])
    if target is SM90:
        close(on_cpu(kernel, held)["C"], want)
    for _, _, got in on_threads(tile_func(kernel, held), target, held):
        close(got["C"], want)


def test_copies_of_early_stages_run_ahead(rng: np.random.Generator) -> None:
    def stages(choice: str) -> dict[str, int]:
        func = tile_func(arranged(*CHOICES[choice]), arrays(rng)[0])
        return next(ahead(done) for plan, done in lowered(func, SM90) if plan.specialise)

    assert stages("stages") == {"A_s": 2, "B_s": 2}
    assert stages("far") == {"A_s": 3, "B_s": 3}
    assert stages("one ahead") == {"A_s": 3}
    assert stages("left free") == {"A_s": 2, "B_s": 2}
    func = tile_func(arranged(*CHOICES["none"]), arrays(rng)[0])
    assert not any(ahead(done) for _, done in lowered(func, SM90))


def test_the_order_of_the_code(rng: np.random.Generator) -> None:
    def names(choice: str) -> list[str]:
        func = tile_func(arranged(*CHOICES[choice]), arrays(rng)[0])
        (loop,) = [o for o in ops(func, For) if o.kind == "pipelined"]
        found = []
        for o in loop.body.ops:
            if isinstance(o, (Copy, Gemm)):
                found.append(o.dest.buffer.name if isinstance(o, Copy) else "gemm")
            elif o.regions:
                found.append("bias")
        return found

    assert names("stages") == ["A_s", "B_s", "bias", "gemm"]
    assert names("order") == ["B_s", "A_s", "gemm", "bias"]
    assert names("both") == ["B_s", "bias", "A_s", "gemm"]  # the product waits for A_s
    assert names("left free") == ["A_s", "B_s", "gemm", "bias"]


@pytest.mark.parametrize(
    ("grouped", "each"),
    [
        (((1, 0), (0, 1), ((0, 1), (2, 3))), ((2, 3, 0, 1), (0, 0, 1, 1))),
        (((-1, 1, 0), (-1, 1, 1), ((0, 1), (2,), (3,))), ((-1, -1, 1, 0), (-1, -1, 1, 1))),
        (((), (2, 0), ((2, 3), (0, 1))), ((), (0, 0, 2, 2))),
    ],
)
def test_groups_of_statements(grouped, each, rng) -> None:
    """What is in one stands together, as if each statement had its entry."""
    held, want = arrays(rng)
    order, stage, group = grouped
    kernel = arranged(order, stage, group=group)
    found = []
    for made in (kernel, arranged(*each)):
        (loop,) = [o for o in ops(tile_func(made, held), For) if o.kind == "pipelined"]
        found.append((loop.order, loop.stage, [o.opname for o in loop.body.ops]))
    assert found[0] == found[1]
    for _, _, got in on_threads(tile_func(kernel, held), SM90, held):
        close(got["C"], want)


@pytest.mark.parametrize(
    ("group", "message", "hint"),
    [
        (((0, 1), (2,)), "group of T.Pipelined has the statements [0, 1, 2], the loop's body 4",
         "group=[[0], [1], [2], [3]]"),
        (((0, 1), (2, 2, 3)), "has the statements [0, 1, 2, 2, 3]", "name each of them once"),
        (((0,), (1,), (2, 3)), "order of T.Pipelined has 2 entries, group 3", "order=[0, 1, 2]"),
        ((0, 1), "group of T.Pipelined is", "group=[[0], [1, 2], …]"),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit(group, message, hint, rng) -> None:
    with pytest.raises(CompileError) as caught:
        tile_func(arranged((0, 1), (), group=group), arrays(rng)[0])
    assert message in str(caught.value) and hint in str(caught.value)


@pytest.mark.parametrize(
    ("order", "stage", "num_stages", "message", "hint"),
    [
        ((0, 1), (), None, "order of T.Pipelined has 2 entries, the loop's body 4 statements that "
         "act: copy A_s, copy B_s, parallel on line", "order=[0, 1, 2, 3]"),
        ((), (0, 1, 1), None, "stage of T.Pipelined has 3 entries", "stage=[0, 0, 0, 0]"),
        ((0, 1, 1, 2), (), None, "order of T.Pipelined has 1 twice", "a place of its own"),
        ((0, 1, 2, -2), (), None, "order of T.Pipelined has the entry -2", "-1 leaves"),
        ((1, 2, 3, 0), (), None, "puts statement 3 (gemm acc) before statement 0 (copy A_s), whose "
         "data it needs", "a later stage"),
        ((1, 2, 3, 0), (0, 0, 0, 0), None, "puts statement 3 (gemm acc)", "a later stage"),
        ((), (0, 0, 3, 3), 2, "3 iterations ahead, num_stages=2 has no room", "num_stages=4"),
        ((), (0.5, 0, 1, 1), None, "not a list of ints", ""),
    ],
)  # fmt: skip
def test_lists_that_do_not_fit(order, stage, num_stages, message, hint, rng) -> None:
    with pytest.raises(CompileError) as caught:
        tile_func(arranged(order, stage, num_stages), arrays(rng)[0])
    text = str(caught.value)
    assert message in text and hint in text
    assert "T.Pipelined(" in text and len(text.splitlines()) <= 12


@TARGETS
def test_break_turns_overlap_off(target: Target, rng: np.random.Generator) -> None:
    held, want = arrays(rng, 128 + 8)
    steps = 4  # the fifth, of 8 columns, is left out
    a, b = held["A"][:, :128].astype(np.float64), held["B"][:128].astype(np.float64)
    want = a @ b + steps * held["bias"][:, None].astype(float)
    kernel = arranged((), (), 3, stop_early=True)
    close(on_cpu(kernel, held)["C"], want)
    for _, done, got in on_threads(tile_func(kernel, held), target, held):
        close(got["C"], want)
        assert not ahead(done)
