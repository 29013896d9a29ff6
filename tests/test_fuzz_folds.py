"""What the fuzzer's reference says of reductions, scans, atomics and shuffles; that it refuses what
hangs on an order; and that a fault planted in them is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
from tilec.fuzz.buffers import Buffer, Invalid, Place
from tilec.fuzz.folds import Element
from tilec.fuzz.meaning import Words
from tilec.fuzz.numbers import Number
from tilec.fuzz.outcome import run_program
from tilec.fuzz.program import PLAIN, Array, Program
from tilec.ir import semantics
from tilec.ir.types import BOOL, FLOAT16, FLOAT32, INT8, INT32, UINT8, DType


def words(threads: int = 64) -> Any:
    made = Words(Place(), PLAIN)
    made._threads = threads
    return made


def tile(w: Any, values: Any, dtype: DType, error: Any = 0.0) -> Buffer:
    given = np.asarray(values)
    made = w.alloc_shared(given.shape, dtype)
    made[np.ix_(*map(np.arange, given.shape))] = Number(given, dtype, np.full(given.shape, error))
    return made


def test_sums_are_exact_or_bounded() -> None:
    w = words()
    out = tile(w, [9.0, 9.0], FLOAT32)
    w.reduce_sum(tile(w, [[1, 2, 4], [0.5, 0, -1]], FLOAT16), out, dim=1)
    assert out.value.tolist() == [7.0, -0.5] and not out.error.any()
    w.reduce_sum(tile(w, [[0.1, 0.7], [1, 1]], FLOAT32), out, dim=1, clear=False)
    assert out.value[1] == 1.5 and (out.error > 0).all() and (out.error < 1e-5).all()
    w.reduce_abssum(tile(w, [[1, -2], [3, -4]], FLOAT32, 0.25), out, dim=0)
    assert out.value.tolist() == [4.0, 6.0] and (out.error >= 0.5).all()


def test_ints_wrap_in_the_wider_dtype() -> None:
    w = words()
    narrow, wide, real = (tile(w, [0], d) for d in (INT8, INT32, FLOAT16))
    source = tile(w, [100, 100, 100], INT8)
    for out in (narrow, wide, real):
        w.reduce_sum(source, out)
    assert (narrow.value[0], wide.value[0], real.value[0]) == (44, 300, 300.0)
    w.reduce_bitxor(tile(w, [1, 3, 4], UINT8), narrow)
    assert narrow.value[0] == 6
    w.reduce(tile(w, [[-7], [5]], INT32), wide, "absmax", dim=0)
    assert wide.value[0] == 7


def test_running_values() -> None:
    w = words()
    x = tile(w, [[1, 2, 3], [4, 5, 6]], INT32)
    y = tile(w, np.zeros((2, 3)), INT32)
    w.cumsum(x, y, dim=1, reverse=True)
    assert y.value.tolist() == [[6, 5, 3], [15, 11, 6]]
    w.cummax(tile(w, [[3, 1], [2, 5]], INT32), x := tile(w, np.zeros((2, 2)), INT32))
    assert x.value.tolist() == [[3, 1], [3, 5]]
    w.cumsum(x)
    assert x.value.tolist() == [[3, 1], [6, 6]]


def test_conditions_of_all_elements() -> None:
    w = words()
    x = tile(w, [0.0, np.nan, 2.0], FLOAT32)
    assert bool(w.any_of(x)) and not bool(w.all_of(x))
    assert not w.any_of(tile(w, [0.0, 0.1], FLOAT32, 0.2)).exact()
    assert w.any_of(tile(w, [False], BOOL)).dtype is BOOL


def test_atomics_of_several_iterations() -> None:
    w = words()
    h = tile(w, [0, 0, 5], INT8)
    for i in w.every(200):
        w.atomic_add(Element(h, i % 2), 1)
        assert h.value.tolist() == [100, 100, 5]
        with pytest.raises(Invalid, match="another one touches"):
            w.atomic_max(Element(h, i % 2), 1)  # beside the additions
        with pytest.raises(Invalid, match="another one writes"):
            h[i % 2]
    for j in w.every(3):
        assert w.atomic_max(Element(h, j), 50, return_prev=True).value.tolist() == [100, 100, 5]
    assert h.value.tolist() == [100, 100, 50]
    for i in w.every(4):
        with pytest.raises(Invalid):  # who comes first gets what was there
            w.atomic_add(Element(h, i % 2), 1, return_prev=True)


def test_atomics_of_blocks() -> None:
    w = words()
    h = w.tensor("H", (4,), INT32)
    h.fill_from(np.zeros(4, np.int32))
    part = tile(w, [1, 2, 3], UINT8)
    for _ in w.Kernel(3):
        w.atomic_add(Element(h, 2), part)  # over the edge
    assert h.value.tolist() == [0, 0, 3, 6]
    w._place.block = 7
    with pytest.raises(Invalid):
        h[np.array(2)]


def test_shuffles_stay_in_their_groups() -> None:
    w, lanes = words(64), np.arange(64)
    v = Number(lanes, INT32)
    assert (w.shfl_xor(v, 5).value == (lanes ^ 5)).all()
    assert w.shfl_up(v, 3, 8).value[:12].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 8, 9, 10, 8]
    assert w.shfl_down(v, 1).value[30:34].tolist() == [31, 31, 33, 34]
    assert w.shfl_sync(v, 35, 32).value.tolist() == [3] * 32 + [35] * 32


SOURCE = """
@tilec.kernel
def kernel(A: T.Tensor((8, 20), "int32"), C: T.Tensor((8,), "int32"), H: T.Tensor((5,), "int32")):
    with T.Kernel(2, threads=64) as bx:
        x, s = T.alloc_shared((8, 20), "int32"), T.alloc_shared((8,), "int32")
        T.copy(A, x)
        T.{word}
        if bx == 0:
            T.copy(s, C)
        for i in T.Parallel(20):
            T.atomic_{kind}(H[i % 5], i)
"""


@pytest.mark.parametrize("word", ["reduce_max(x, s, dim=1)", "reduce_abssum(x, s)"])
@pytest.mark.parametrize("kind", ["add", "max"])
def test_a_planted_fault_is_found(word: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {
        "A": Array((8, 20), "int32", "plain", "ints", 1),
        "C": Array((8,), "int32", "plain", "blank"),
        "H": Array((5,), "int32", "plain", "ints", 2),
    }
    program = Program(SOURCE.format(word=word, kind=kind).lstrip(), arguments)
    targets = ("cpu", "cuda:sm_90a")
    assert [o.kind for o in run_program(program, targets)] == ["ok", "ok"]
    reduce = semantics.reduce
    monkeypatch.setattr(semantics, "reduce", lambda *a, **k: reduce(*a, **k) + 1)
    assert {(o.kind, o.detail) for o in run_program(program, targets)} == {("numbers", "C")}
    monkeypatch.setattr(semantics, "reduce", reduce)
    update = Buffer.update
    monkeypatch.setattr(Buffer, "update", lambda self, i, v, k: update(self, i, 1, k))
    assert {(o.kind, o.detail) for o in run_program(program, targets)} == {("numbers", "H")}


def test_threads_of_the_decorator_count() -> None:
    """How many there are is seen where each of them adds 1."""
    source = (
        "@tilec.kernel(threads=64)\ndef kernel(H: T.Tensor((3,), 'int32')):\n"
        "    with T.Kernel(2) as bx:\n        tx = T.get_thread_binding(0)\n"
        "        T.atomic_add(H[tx % 2 + bx], 1)\n"
    )
    program = Program(source, {"H": Array((3,), "int32", "plain", "ints", 2)})
    assert [o.kind for o in run_program(program, ("cpu", "cuda:sm_90a"))] == ["ok", "ok"]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("form", ["decorated", "launched"])
def test_warps_of_kernels_without_t_kernel(form: str, target: str) -> None:
    """Found by the fuzzer: all lanes count where the grid comes from the launch."""
    head = "@tilec.kernel(threads=64)" if form == "decorated" else "@tilec.kernel"
    source = (
        f"{head}\ndef kernel(A: T.Tensor((128,), 'int32'), C: T.Tensor((128,), 'int32')):\n"
        "    at = T.program_id(0) * 64 + T.get_thread_binding(0)\n"
        "    v = A[at]\n    C[at] = T.warp_reduce_sum(T.if_then_else(at % 64 < 32, v, 0))\n"
    )
    a, c = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    kernel = Program(source, {}).load()
    options = {} if form == "decorated" else {"threads": 64}
    if target == "cpu":
        kernel[(2,)](a, c, **options)
    else:
        assert tilec.simulate(kernel, a, c, target=target, grid=(2,), **options).ok
        compiled = kernel.compile(a, c, target=target, **options)
        assert compiled.stages["tile"].count("select") == 1  # the program's own
    assert c[:32].tolist() == [496] * 32 and c[64:96].tolist() == [2544] * 32
