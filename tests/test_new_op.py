"""Ops that tilec does not have, in two files (`accumulate_op`: what they are and compute,
`accumulate_lowering`: what they do to an element), and all that they get with no other edit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accumulate_lowering  # noqa: F401  (says how its ops are lowered)
import numpy as np
import pytest
from accumulate_op import Accumulate, CountFrom, accumulate, count_from
from frontend_help import ops, run, traced

import tilec
import tilec.language as T
from tilec.ir.core import Effect, Effects, Func, Op, Value
from tilec.ir.errors import CompileError, LaunchError
from tilec.ir.op_classes import OPS, op
from tilec.ir.ops import Alloc, Barrier, If
from tilec.ir.parser import parse_func
from tilec.ir.schedule import Plan
from tilec.jit.simulate import simulate_changed
from tilec.passes import run_plan
from tilec.passes.utils.dce import sweep
from tilec.target import TARGETS

pytestmark = pytest.mark.turns

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")


@op("note")
class Note(Op):
    """Tells the world a number: an op that stands in loops over elements."""

    value: Value

    def effects(self) -> Effects:
        return (Effect("output"),)


OWN = {cls.opname: cls for cls in (Accumulate, CountFrom, Note)}
for name in OWN:
    del OPS[name]  # the other tests' ops are tilec's


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cls in OWN.items():
        monkeypatch.setitem(OPS, name, cls)


@tilec.kernel
def sums(A: T.Tensor((N, 256), "float32"), C: T.Tensor((256,), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((256,), "float32")
        count_from(s, 3)
        for k in T.Pipelined(N, num_stages=2):
            t = T.alloc_shared((256,), "float32")
            T.copy(A[k, 0], t)
            accumulate(t, s)
        accumulate(s[128:256], s[0:128])
        accumulate(s[0:16], C[240])


def sums_of(A: np.ndarray, C: np.ndarray) -> np.ndarray:
    s = 3 + np.arange(256, dtype=np.float32) + A.sum(0)
    s[:128] += s[128:]
    done = C.copy()
    done[240:] += s[:16]
    return done


@tilec.kernel
def biased(
    A: T.Tensor((N, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    D: T.Tensor((N, 64), "float32"),
    C: T.Tensor((N, 64), "float32"),
):
    with T.Kernel(T.ceildiv(N, 64), threads=128) as by:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        acc, more = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        row = T.alloc_fragment((1, 64), "float32")
        T.copy(A[by * 64, 0], a)
        T.copy(B, b)
        T.clear(acc)
        T.gemm(a, b, acc)
        T.copy(D[by * 64, 0], more)
        accumulate(more, acc)
        count_from(row, 1)
        accumulate(row, acc[3:4, :])
        accumulate(a, acc)
        accumulate(acc, C[by * 64, 0])


@tilec.kernel
def odd(A: T.Tensor((100, 36), "float32"), C: T.Tensor((100, 36), "float32")):
    with T.Kernel(1, threads=128):
        x, y = T.alloc_fragment((100, 36), "float32"), T.alloc_fragment((100, 36), "float32")
        T.copy(A, x)
        count_from(y, 2)
        accumulate(x, y)
        accumulate(y, C)


def small(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.integers(-4, 5, shape).astype(dtype)


def cases(rng: np.random.Generator) -> Iterator[tuple[Any, list[np.ndarray], np.ndarray]]:
    """(kernel, arguments, what the last one is then): a ring, layouts of a product beside others,
    parts of fragments, bounds of tensors, tiles that threads cannot share evenly."""
    A, C = small(rng, 5, 256), small(rng, 256)
    yield sums, [A, C], sums_of(A, C)
    A, B = small(rng, 100, 64, dtype=np.float16), small(rng, 64, 64, dtype=np.float16)
    C, D = small(rng, 100, 64), small(rng, 100, 64)
    want = C + A.astype(np.float32) @ B.astype(np.float32) + D + A
    want[[3, 67]] += 1 + np.arange(64)
    yield biased, [A, B, D, C], want
    A, C = small(rng, 100, 36), small(rng, 100, 36)
    yield odd, [A, C], C + A + 2 + np.arange(3600).reshape(100, 36)


@pytest.mark.parametrize("target", ("cpu", *GPUS))
def test_it_runs_on_every_target(target: str, rng: np.random.Generator) -> None:
    for kernel, args, want in cases(rng):
        if target == "cpu":
            kernel(*args)
        else:
            report = tilec.simulate(kernel, *args, target=target)
            assert report.ok, report
        assert np.array_equal(args[-1], want), kernel.name


def test_its_meaning_is_its_own(rng: np.random.Generator) -> None:
    for kernel, args, want in cases(rng):
        names = [p.name for p in kernel.parameters]
        found = run(kernel.function, dict(zip(names, args)))
        assert np.array_equal(found[names[-1]], want), kernel.name


@pytest.mark.parametrize("target", GPUS)
def test_threads_meet_around_it(target: str, rng: np.random.Generator) -> None:
    dropped = []

    def without_barriers(func: Func) -> Func:
        dropped.extend(ops(func, Barrier))
        return func.rewrite(Barrier, lambda o: [])

    args = [small(rng, 5, 256), small(rng, 256)]
    report = simulate_changed(without_barriers, sums, *args, target=target)
    races = [f for f in report.findings if f.kind == "data race"]
    lines = {place.source_line().strip() for f in races for place in f.locations}
    assert len(dropped) >= 3
    assert {"accumulate(s[128:256], s[0:128])", "accumulate(t, s)"} <= lines


def test_a_launch_knows_what_it_writes(rng: np.random.Generator) -> None:
    A, C = small(rng, 5, 256), small(rng, 256)
    written = {a.name: a.written for a in sums.compile(A, C, target="cpu").image.arguments}
    assert written == {"A": False, "C": True}
    C.flags.writeable = False
    with pytest.raises(LaunchError, match="C is read-only, and the kernel writes it"):
        sums(A, C)
    want = sums_of(A, A[0])  # the tensor that it changes is read, too
    sums(A, A[0])
    assert np.array_equal(A[0], want)
    with pytest.raises(LaunchError, match="A and C share memory and one is written"):
        sums.compile(small(rng, 5, 256), small(rng, 256), target="cpu")(A, A[1])


@tilec.kernel
def inside(C: T.Tensor((256,), "float32")):
    with T.Kernel(1, threads=128):
        for _ in T.Parallel(256):
            accumulate(C, C)


@tilec.kernel
def under(C: T.Tensor((256,), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((256,), "float32")
        count_from(s, 0)
        if T.get_thread_binding() < 7:
            accumulate(s, C)


@tilec.kernel
def filled(C: T.Tensor((256,), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((256,), "float32")
        own = T.alloc_local((4,), "int32")
        T.fill(own, T.get_thread_binding())
        if own[0] < 7:
            T.copy(C, s)


def test_mistakes_have_their_line(rng: np.random.Generator) -> None:
    with pytest.raises(CompileError, match="T.accumulate works on whole tiles"):
        inside.compile(small(rng, 256), target="cpu")
    with pytest.raises(CompileError, match="holds for threads 0 to 6: a group that works"):
        under.compile(small(rng, 256), target="cuda:sm_90a")
    lines = Path(__file__).read_text().split("\n")
    line = 1 + next(n for n, text in enumerate(lines) if text.strip() == "if own[0] < 7:")
    with pytest.raises(
        CompileError,
        match=f"T.copy needs every thread .* a condition .line {line}.*from thread to thread",
    ):
        filled.compile(small(rng, 256), target="cuda:sm_90a")


PARAMS = "%C: global<64xf32> = tensor C, %n: i32 = scalar n"


def func_of(body: str) -> Func:
    text = f"kernel @f {{}} ({PARAMS}) grid {{ yield [%n] }} body {{ %z = const 0, i32 {body} }}"
    return parse_func(text)


def test_what_it_changes_is_kept(rng: np.random.Generator) -> None:
    """A buffer that it changes is one that has been read; what it only writes may go."""
    body = "%s = alloc shared<64xf32> %x = const 0.0, f32 count_from %s[%z], (64), %x"
    assert not ops(sweep(func_of(body)), Alloc)
    body += " accumulate %s[%z], (64), %s[%z], (64)"
    assert len(sweep(func_of(body)).body.ops) == 5
    func = traced(sums.function, {"A": small(rng, 5, 256), "C": small(rng, 256)})
    assert len(ops(sweep(func), Accumulate)) == 3


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@pytest.mark.parametrize("target", GPUS)
def test_replicas_do_not_repeat_it(target: str) -> None:
    """Of 128 threads 16 have an element of a loop over 16; the others run it beside them."""
    body = "parallel (16) body(%i: i32) { note %i }"
    func = func_of(body).with_attrs(threads=128)
    made = run_plan(func, TARGETS[target], Plan("plain"))
    (note,) = ops(made, Note)
    around = [o for o in ops(made, If) if any(x is note for x in o.then.ops)]
    assert len(around) == 1 and note not in made.body.ops


def test_files_of_a_new_op() -> None:
    """Besides its two files a new op is named nowhere."""
    files = Path(tilec.__file__).parent.rglob("*.py")
    name = re.compile(r"(?<!itertools\.a)ccumulate\(")
    assert [p for p in files if name.search(p.read_text())] == []
