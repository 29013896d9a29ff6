"""Whole programs through all GPU passes, executed thread by thread and compared with what they
mean.

Every target and plan, on products of many shapes and on programs that are not products; guards,
vectors, swizzles, rings, descriptors and instruction operands are all exercised without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from interp import run_tile
from programs import PROGRAMS
from thread_interp import run_threads

from tilec.ir.core import Func, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Barrier,
    CpAsync,
    Ldmatrix,
    MemLoad,
    Mma,
    Print,
    Scope,
    Stmatrix,
    TmaLoad,
    TmaStore,
    Wgmma,
)
from tilec.ir.parser import parse_func
from tilec.passes import run_plan
from tilec.target import Target, find_target
from tilec.tune.plans import plans

SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))
# Which of a target's plans are run: persistent, ping-pong and not persistent, staged and direct.
PLANS = {SM90: (0, 1, 2, 5, 6), SM80: (0,), GFX942: (0, 1)}
CASES = [(t, i) for t in PLANS for i in PLANS[t]]
IDS = [f"{t.arch}-{i}" for t, i in CASES]

MATMUL = """
kernel @matmul {{threads={threads}}} (
  %A: global<{ash} x {dt}, strides=[A_stride0, 1], align={align}> = tensor A,
  %B: global<{bsh} x {dt}, strides=[B_stride0, 1], align={align}> = tensor B,
  %C: global<M x N x {ot}, strides=[C_stride0, 1], align={align}> = tensor C,
  %M: i32 = size C 0, %N: i32 = size C 1, %K: i32 = size A {kdim},
  %A_stride0: i64 = stride A 0, %B_stride0: i64 = stride B 0, %C_stride0: i64 = stride C 0,
)
grid {{
  %n1 = const {bn1}, i32
  %bn = const {bn}, i32
  %m1 = const {bm1}, i32
  %bm = const {bm}, i32
  %a = binary.add %N, %n1
  %gx = binary.floordiv %a, %bn
  %b = binary.add %M, %m1
  %gy = binary.floordiv %b, %bm
  yield [%gx, %gy]
}}
body {{
  %bx = block_index 0
  %by = block_index 1
  %As = alloc shared<{at}x{dt}>
  %Bs = alloc shared<{bt}x{dt}>
  %acc = alloc fragment<{bm}x{bn}xf32>
  %zero = const 0, i32
  %zf = const 0.0, f32
  fill %acc[%zero, %zero], ({bm}, {bn}), %zf
  %bm = const {bm}, i32
  %bn = const {bn}, i32
  %row = binary.mul %by, %bm
  %col = binary.mul %bx, %bn
  %one = const 1, i32
  %bk = const {bk}, i32
  %k1 = const {bk1}, i32
  %k2 = binary.add %K, %k1
  %steps = binary.floordiv %k2, %bk
  for.pipelined %zero, %steps, %one, num_stages={stages} body(%k: i32) {{
    %at = binary.mul %k, %bk
    copy %A[{apos}], ({at2}), %As[%zero, %zero], ({at2})
    copy %B[{bpos}], ({bt2}), %Bs[%zero, %zero], ({bt2})
    gemm %As[%zero, %zero], ({at2}), %Bs[%zero, %zero], ({bt2}), %acc{flags}
    yield
  }}
  copy %acc[%zero, %zero], ({bm}, {bn}), %C[%row, %col], ({bm}, {bn})
}}
"""


def matmul_text(
    bm, bn, bk, stages, threads, ta, tb, dt="f16", ot="f16", align=16, policy="square"
) -> str:
    a, b = ((bk, bm) if ta else (bm, bk)), ((bn, bk) if tb else (bk, bn))
    flags = (", transpose_a=true" if ta else "") + (", transpose_b=true" if tb else "")
    if policy != "square":
        flags += f", policy={policy}"
    return MATMUL.format(
        bm=bm,
        bn=bn,
        bk=bk,
        bm1=bm - 1,
        bn1=bn - 1,
        bk1=bk - 1,
        stages=stages,
        threads=threads,
        dt=dt,
        ot=ot,
        align=align,
        ash="K x M" if ta else "M x K",
        bsh="N x K" if tb else "K x N",
        kdim=0 if ta else 1,
        at=f"{a[0]}x{a[1]}",
        bt=f"{b[0]}x{b[1]}",
        at2=f"{a[0]}, {a[1]}",
        bt2=f"{b[0]}, {b[1]}",
        apos="%at, %row" if ta else "%row, %at",
        bpos="%col, %at" if tb else "%at, %col",
        flags=flags,
    )


def strided(rng, shape, dtype, pad):
    """Random numbers in rows that are `pad` elements longer than the array."""
    whole = rng.standard_normal((shape[0], shape[1] + pad)).astype(dtype)
    return whole[:, : shape[1]]


def check_matmul(
    text: str, target: Target, plan: int, m: int, n: int, k: int, ta, tb, dtype, out, pad
) -> Func:
    chosen = plans(parse_func(text), target)[plan]
    func = run_plan(parse_func(text), target, chosen)
    rng = np.random.default_rng(m * 1000 + n * 10 + k)
    a = strided(rng, (k, m) if ta else (m, k), dtype, pad)
    b = strided(rng, (n, k) if tb else (k, n), dtype, pad)
    c = strided(rng, (m, n), out, pad)
    c[:] = np.nan
    run_threads(func, target, {"A": a, "B": b, "C": c}, launched=2)
    left, right = (a.T if ta else a), (b.T if tb else b)
    want = left.astype(np.float64) @ right.astype(np.float64)
    assert np.isfinite(c.astype(np.float64)).all(), "an output was not written"
    error = np.linalg.norm(c.astype(np.float64) - want) / np.linalg.norm(want)
    assert error < (1e-3 if out != np.float32 else 2e-6), error
    return func


def kinds(func: Func) -> set[type]:
    return {type(o) for o in walk(func.body)}


@pytest.mark.covering(1)
@pytest.mark.parametrize(("target", "plan"), CASES, ids=IDS)
@pytest.mark.parametrize(
    ("ta", "tb"), [(0, 0), (0, 1), (1, 0), (1, 1)], ids=["NN", "NT", "TN", "TT"]
)
def test_products(target, plan, ta, tb):
    text = matmul_text(64, 64, 32, 3, 128, ta, tb)
    func = check_matmul(text, target, plan, 72, 136, 88, ta, tb, np.float16, np.float16, 0)
    used = kinds(func)
    if target is SM90:
        chosen = plans(parse_func(text), target)[plan]
        assert Wgmma in used
        assert (TmaLoad in used) == (Scope in used) == chosen.specialise
        assert (TmaStore in used) == (Stmatrix in used) == chosen.staged_store
        assert (CpAsync in used) == (not chosen.specialise)
    elif target is SM80:
        assert {Mma, Ldmatrix, CpAsync, Barrier} <= used
    else:
        assert Mma in used and CpAsync not in used


@pytest.mark.parametrize(
    "shape",
    [(128, 256, 64, 4, 256), (128, 96, 64, 2, 128), (192, 64, 32, 2, 384), (64, 80, 16, 2, 128)],
)
def test_wide_tiles_on_warpgroups(shape):
    for tb in (0, 1):
        func = check_matmul(
            matmul_text(*shape, 0, tb), SM90, 0, 200, 264, 72, 0, tb, np.float16, np.float16, 0
        )
        assert Wgmma in kinds(func)


@pytest.mark.covering(1)
@pytest.mark.parametrize("policy", ["square", "full_row", "full_col"])
@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_policies(target, policy):
    text = matmul_text(128, 128, 32, 2, 256, 0, 1, policy=policy)
    check_matmul(text, target, 0, 130, 70, 40, 0, 1, np.float16, np.float16, 0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
@pytest.mark.parametrize("align", [2, 4, 8])
def test_misaligned_rows(target, align):
    text = matmul_text(64, 64, 32, 3, 128, 0, 0, align=align)
    func = check_matmul(text, target, 0, 67, 37, 51, 0, 0, np.float16, np.float16, align // 2)
    used = kinds(func)
    assert TmaLoad not in used and TmaStore not in used
    assert (CpAsync in used) == (target is not GFX942 and align >= 4)


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_float32_stays_float32(target):
    text = matmul_text(32, 32, 16, 2, 128, 0, 0, dt="f32", ot="f32")
    func = check_matmul(text, target, 0, 40, 36, 20, 0, 0, np.float32, np.float32, 0)
    rows = {o.instr for o in walk(func.body) if isinstance(o, (Mma, Wgmma))}
    assert all("f32" in row and "tf32" not in row for row in rows)
    assert bool(rows) == (target is GFX942)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 1, 70), (1, 200, 3)])
def test_tiny_sizes(target, size):
    text = matmul_text(64, 64, 32, 2, 128, 0, 0, align=2)
    check_matmul(text, target, 0, *size, 0, 0, np.float16, np.float16, 1)


@pytest.mark.covering(1)
@pytest.mark.parametrize(("target", "plan"), CASES, ids=IDS)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_of_every_kind(name, target, plan):
    text, make = PROGRAMS[name]
    func = parse_func(text)
    possible = plans(func, target)
    chosen = possible[min(plan, len(possible) - 1)]
    want, got = make(np.random.default_rng(3)), make(np.random.default_rng(3))
    run_tile(func, want)
    try:
        done = run_plan(func, target, chosen)
    except ResourceError:
        assert chosen.consumer_groups > 1, "only groups need a loop that can be shared out"
        return
    run_threads(done, target, got)
    for key, value in want.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(
                got[key].astype(np.float64),
                value.astype(np.float64),
                rtol=1e-3,
                atol=1e-4,
                err_msg=key,
            )


def test_aligned_rows_are_read_in_vectors():
    text = PROGRAMS["stencil"][0]
    func = run_plan(parse_func(text), SM80, plans(parse_func(text), SM80)[0])
    assert all(o.lanes == 1 for o in walk(func.body) if isinstance(o, MemLoad)), (
        "nothing is known of the rows"
    )


def test_printing_a_buffer_prints_its_elements():
    text = PROGRAMS["transpose"][0]
    head, _, tail = text.partition("body {\n")
    name = text.split("= alloc shared")[0].split("%")[-1].strip()
    at = tail.index("parallel")
    printed = parse_func(f'{head}body {{\n{tail[:at]}print "t", buffer=%{name}\n  {tail[at:]}')
    func = run_plan(printed, SM80, plans(printed, SM80)[0])
    found = [o for o in walk(func.body) if isinstance(o, Print)]
    assert found and all(o.buffer is None and o.format == "t[{}, {}] = {}" for o in found)
    assert len(found[0].values) == 3
