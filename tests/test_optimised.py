"""`tilec.simulate(..., optimised=True)`: the text that LLVM's optimiser leaves, read back and run,
and what LLVM leaves undefined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mutant_families import FAMILIES
from mutants import prepare

import tilec
import tilec.language as T
from tilec.codegen import divisions
from tilec.ir.errors import InternalError, LaunchError
from tilec.ir.llvm_parser import parse_function
from tilec.jit.simulate import launch_of, records_for
from tilec.jit.simulated import records_of
from tilec.sim import numbers
from tilec.sim.findings import Finding
from tilec.sim.launch import Wishes, run
from tilec.sim.undefined import POISON, Undefined, is_undefined, lost_in, lost_where

N = T.dynamic("N")
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
LOW, HIGH = -(2**31), 2**31 - 1
EDGES = np.int32(
    [0, 1, 2, 3, 7, 31, 32, 33, 255, 256, -1, -2, -7, -32, HIGH, HIGH - 1, LOW, LOW + 1]
)


@tilec.kernel
def through(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32"), Z: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((64,), "int32")
        T.copy(X, s)
        for i in T.Parallel(64):
            Z[i] = s[63 - i] + Y[i]


def execute(body: str, xs: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, list[Finding]]:
    """What lane i of one warp or two computes of %x and %y: the value %r, an i32. `body`: LLVM text
    whose first block is %entry and whose last one has the store of %r."""
    text = f"""
@smem = external addrspace(3) global [0 x i8], align 1024
define void @k(ptr addrspace(1) %X, ptr addrspace(1) %Y, ptr addrspace(1) noalias %Z) #0 {{
entry:
  %t = tail call range(i32 0, 1024) i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !dbg !7
  %w = zext nneg i32 %t to i64
  %px = getelementptr inbounds nuw i32, ptr addrspace(1) %X, i64 %w
  %x = load i32, ptr addrspace(1) %px, align 4, !dbg !7, !invariant.load !8
  %py = getelementptr inbounds [1 x i32], ptr addrspace(1) %Y, i64 %w, i64 0
  %y = load i32, ptr addrspace(1) %py, align 4
  %pz = getelementptr i32, ptr addrspace(1) %Z, i64 %w
{body}
  store i32 %r, ptr addrspace(1) %pz, align 4, !dbg !7
  ret void
}}
!7 = !DILocation(line: 3, column: 1, scope: !2)
"""
    x, y, z = np.zeros((3, 64), np.int32)
    x[: len(xs)], y[: len(ys)] = xs, ys
    planned = through.plan_launch("cuda:sm_80", None, (x, y, z), {})
    records = replace(records_for(through, planned), function=parse_function(text).function)
    report = run(launch_of(planned, records), Wishes())
    return z[: len(xs)], list(report.findings)


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """64 pairs of edges at a time is what one launch takes; these are chosen by a fixed rule."""
    rng = np.random.default_rng(3)
    return rng.choice(EDGES, 64), rng.choice(EDGES, 64)


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def u(value: int) -> int:
    return int(value) & 0xFFFF_FFFF


def fits(value: int) -> bool:
    return LOW <= value <= HIGH


Semantics = Callable[[int, int], "int | None"]
OPS: dict[str, Semantics] = {
    "add i32 %x, %y": lambda x, y: signed(x + y),
    "add nsw i32 %x, %y": lambda x, y: x + y if fits(x + y) else None,
    "add nuw i32 %x, %y": lambda x, y: signed(x + y) if u(x) + u(y) < 2**32 else None,
    "sub nsw i32 %x, %y": lambda x, y: x - y if fits(x - y) else None,
    "sub nuw i32 %x, %y": lambda x, y: signed(x - y) if u(x) >= u(y) else None,
    "mul nsw i32 %x, %y": lambda x, y: x * y if fits(x * y) else None,
    "mul nuw nsw i32 %x, %y": lambda x, y: (
        x * y if fits(x * y) and u(x) * u(y) < 2**32 else None
    ),
    "shl i32 %x, %y": lambda x, y: signed(x << y) if 0 <= y < 32 else None,
    "shl nuw i32 %x, %y": lambda x, y: (
        signed(x << y) if 0 <= y < 32 and u(x) << y < 2**32 else None
    ),
    "shl nsw i32 %x, %y": lambda x, y: x << y if 0 <= y < 32 and fits(x << y) else None,
    "lshr i32 %x, %y": lambda x, y: signed(u(x) >> y) if 0 <= y < 32 else None,
    "lshr exact i32 %x, %y": lambda x, y: (
        signed(u(x) >> y) if 0 <= y < 32 and u(x) >> y << y == u(x) else None
    ),
    "ashr i32 %x, %y": lambda x, y: x >> y if 0 <= y < 32 else None,
    "or disjoint i32 %x, %y": lambda x, y: x | y if x & y == 0 else None,
    "call i32 @llvm.umin.i32(i32 %x, i32 %y)": lambda x, y: signed(min(u(x), u(y))),
    "call i32 @llvm.smax.i32(i32 noundef %x, i32 %y)": max,
    "call i32 @llvm.usub.sat.i32(i32 %x, i32 %y)": lambda x, y: signed(max(u(x) - u(y), 0)),
    "call i32 @llvm.sadd.sat.i32(i32 %x, i32 %y)": lambda x, y: min(max(x + y, LOW), HIGH),
    "call i32 @llvm.fshl.i32(i32 %x, i32 %y, i32 5)": lambda x, y: signed(u(x) << 5 | u(y) >> 27),
    "call i32 @llvm.fshr.i32(i32 %x, i32 %x, i32 %y)": lambda x, y: signed(
        (u(x) << 32 | u(x)) >> y % 32
    ),
    "call i32 @llvm.bswap.i32(i32 %x)": lambda x, y: int.from_bytes(
        u(x).to_bytes(4, "little"), "big", signed=True
    ),
    "call i32 @llvm.bitreverse.i32(i32 %x)": lambda x, y: signed(int(f"{u(x):032b}"[::-1], 2)),
    "call i32 @llvm.cttz.i32(i32 %x, i1 false)": lambda x, y: (
        32 if x == 0 else (x & -x).bit_length() - 1
    ),
    "call i32 @llvm.abs.i32(i32 %x, i1 false)": lambda x, y: signed(abs(x)),
    "freeze i32 %x": lambda x, y: x,
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_what_an_instruction_computes_and_where_it_is_poison(op: str) -> None:
    xs, ys = pairs()
    want = [OPS[op](int(x), int(y)) for x, y in zip(xs, ys)]
    got, found = execute(f"  %r = {op}", xs, ys)
    known = np.array([w is not None for w in want])
    assert known.any()
    np.testing.assert_array_equal(got[known], np.int32([w for w in want if w is not None]))
    lanes = set(np.flatnonzero(~known)[:8].tolist())
    assert [f.kind for f in found] == ["undefined behaviour"] * (not known.all())
    if lanes:
        assert set(found[0].threads) == lanes


@pytest.mark.parametrize("op", ["udiv", "sdiv", "urem", "srem"])
def test_a_division_is_undefined_at_once(op: str) -> None:
    """Whether its result is used or not."""
    xs, ys = np.int32([7, 7, LOW, LOW]), np.int32([2, 0, -1, 3])
    _, found = execute(f"  %q = {op} i32 %x, %y\n  %r = add i32 %x, 1", xs, ys)
    first = found[0]
    assert first.kind == "undefined behaviour" and f"{op} by 0" in first.message
    assert set(first.threads) >= {1} and (2 in first.threads) == (op[0] == "s")
    assert 0 not in first.threads and 3 not in first.threads


@pytest.mark.parametrize("op", ["udiv", "sdiv", "urem", "srem"])
def test_a_division_by_a_literal_keeps_what_is_undefined(op: str) -> None:
    """It is spelled without `ThreadState.divide`, which looks at no dividend of it."""
    nothing, lost = Undefined(POISON, 0, None), np.array([False, True, False, True])
    made = numbers.each(numbers.BINARY[op], nothing, np.int32(5))
    assert is_undefined(made)
    some = lost_where(np.int32([10, 1, -7, 2]), lost, nothing)
    made = numbers.each(numbers.BINARY[op], some, np.int32(5))
    np.testing.assert_array_equal(lost_in(made), lost)


OTHERS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "poison that is not chosen": (
        "  %p = shl i32 %x, 40\n  %c = icmp eq i32 %x, %x\n"
        "  %r = select i1 %c, i32 %y, i32 %p",
        lambda x, y: y,
    ),
    "frozen poison multiplied by 0": (
        "  %p = shl i32 %x, 40\n  %f = freeze i32 %p\n  %r = mul i32 %f, 0",
        lambda x, y: 0,
    ),
    "switch": (
        "  switch i32 %x, label %\"other-one\" [\n    i32 1, label %a\n    i32 2, label %b\n"
        "    i32 3, label %a\n  ]\na:\n  br label %e\nb:\n  br label %e\n\"other-one\":\n"
        "  br label %e\ne:\n  %r = phi i32 [ 10, %a ], [ %y, %b ], [ -1, %\"other-one\" ]",
        lambda x, y: {1: 10, 2: y, 3: 10}.get(x, -1),
    ),
    "switch to one place": (
        "  switch i32 %x, label %e [\n    i32 1, label %e\n    i32 2, label %b\n  ]\nb:\n"
        "  br label %e\ne:                  ; preds = %b, %entry, %entry\n"
        "  %r = phi i32 [ 5, %entry ], [ 5, %entry ], [ %y, %b ]",
        lambda x, y: y if x == 2 else 5,
    ),
    "loop": (
        "  %n = call i32 @llvm.smax.i32(i32 %x, i32 0)\n  %m = call i32 @llvm.smin.i32(i32 %n, "
        "i32 9)\n  br label %l\nl:\n  %i = phi i32 [ 0, %entry ], [ %j, %l ]\n"
        "  %s = phi i32 [ 0, %entry ], [ %v, %l ]\n  %v = add i32 %s, %y\n  %j = add nuw nsw i32 "
        "%i, 1\n  %d = icmp samesign ult i32 %i, %m\n  br i1 %d, label %l, label %z, "
        "!llvm.loop !3\nz:\n  %r = phi i32 [ %v, %l ]",
        lambda x, y: signed(y * (min(max(x, 0), 9) + 1)),
    ),
    "vectors": (
        "  %a = insertelement <2 x i32> poison, i32 %x, i64 0\n  %b = insertelement <2 x i32> %a, "
        "i32 %y, i64 1\n  %c = shufflevector <2 x i32> %b, <2 x i32> poison, <2 x i32> <i32 1, "
        "i32 0>\n  %d = add <2 x i32> %c, splat (i32 5)\n  %k = and i32 %t, 1\n  %r = "
        "extractelement <2 x i32> %d, i32 %k",
        lambda x, y: 0,
    ),
    "halves of a word": (
        "  %a = trunc i32 %x to i16\n  %b = lshr i32 %x, 16\n  %c = trunc nuw i32 %b to i16\n"
        "  %d = insertelement <2 x i16> poison, i16 %c, i64 0\n  %e = insertelement <2 x i16> %d, "
        "i16 %a, i64 1\n  %r = bitcast <2 x i16> %e to i32",
        lambda x, y: signed(u(x) >> 16 | (x & 0xFFFF) << 16),
    ),
    "overflow": (
        "  %p = call { i32, i1 } @llvm.sadd.with.overflow.i32(i32 %x, i32 %y)\n  %v = extractvalue "
        "{ i32, i1 } %p, 0\n  %o = extractvalue { i32, i1 } %p, 1\n  %r = select i1 %o, i32 -5, "
        "i32 %v",
        lambda x, y: x + y if fits(x + y) else -5,
    ),
    "addresses": (
        "  store i32 %y, ptr addrspace(3) getelementptr inbounds nuw (i8, ptr addrspace(3) @smem, "
        "i64 16), align 4\n  %p = inttoptr i32 add (i32 ptrtoint (ptr addrspace(3) @smem to i32), "
        "i32 16) to ptr addrspace(3)\n  %q = load i32, ptr addrspace(3) %p, align 4\n"
        "  %g = sub i32 %q, %q\n  %r = add i32 %g, 3",
        lambda x, y: 3,
    ),
    "a stack array": (
        "  %f = alloca [4 x i32], align 4\n  call void @llvm.lifetime.start.p0(ptr %f)\n"
        "  store i32 %x, ptr %f, align 4\n  %f1 = getelementptr inbounds nuw i8, ptr %f, i64 4\n"
        "  store i32 %y, ptr %f1, align 4\n  %k = and i32 %t, 1\n  %fk = getelementptr inbounds "
        "[4 x i32], ptr %f, i64 0, i32 %k\n  %r = load i32, ptr %fk, align 4",
        lambda x, y: 0,
    ),
}  # fmt: skip
BY_LANE = {
    "vectors": lambda x, y: (signed(y + 5), signed(x + 5)),
    "a stack array": lambda x, y: (x, y),
}


@pytest.mark.parametrize("name", OTHERS)
def test_forms(name: str) -> None:
    body, semantics = OTHERS[name]
    xs, ys = pairs()
    xs[:20] = np.arange(20) % 5
    ys = ys if name != "addresses" else np.full(64, 9, np.int32)
    want = [semantics(int(x), int(y)) for x, y in zip(xs, ys)]
    if name in BY_LANE:
        want = [BY_LANE[name](int(x), int(y))[i & 1] for i, (x, y) in enumerate(zip(xs, ys))]
    got, found = execute(body, xs, ys)
    np.testing.assert_array_equal(got, np.int32(want))
    assert not found


@pytest.mark.parametrize(
    "body, words",
    [
        ("  %c = icmp slt i32 %x, 2\n  call void @llvm.assume(i1 %c)", "takes for granted here"),
        ("  %p = shl i32 1, %x\n  %c = icmp eq i32 %p, 1\n  br i1 %c, label %a, label %b\n"
         "a:\n  br label %b\nb:", "the result of shl by more bits"),
        ("  %p = or disjoint i32 %x, 35\n  %q = zext i32 %p to i64\n  %g = getelementptr i32, ptr "
         "addrspace(1) %X, i64 %q\n  %l = load i32, ptr addrspace(1) %g, align 4",
         "the result of or disjoint"),
        ("  %p = shl i32 1, %x\n  %c = icmp eq i32 %p, 77\n  %d = icmp eq i32 %x, 99\n  "
         "%e = and i1 %c, %d\n  br i1 %e, label %a, label %b\na:\n  br label %b\nb:",
         "the result of shl by more bits"),
    ],
)  # fmt: skip
def test_poison_where_it_matters_is_a_finding(body: str, words: str) -> None:
    """In an assumption, a branch (also behind an `and` that LLVM's rules do not save), an
    address."""
    xs = np.zeros(64, np.int32)
    xs[5] = 34
    _, found = execute(f"{body}\n  %r = add i32 0, 1", xs, xs)
    assert found[0].kind == "undefined behaviour" and words in found[0].message
    assert found[0].threads == (5,)


def test_what_cannot_be_read_is_an_error_with_the_line() -> None:
    with pytest.raises(InternalError, match="cannot read LLVM's '%r = va_arg ptr %x, i32'"):
        execute("  %r = va_arg ptr %x, i32", EDGES, EDGES)


# --- kernels ---


@tilec.kernel
def quotients(X: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "int32"), Z: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            Z[bx * 128 + i] = X[bx * 128 + i] // Y[bx * 128 + i]


@pytest.mark.parametrize("target", GPUS)
def test_a_deleted_bounds_guard(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds a divisor reads 0. If the quotient is LLVM's own, LLVM concludes that no
    lane is there and deletes the test: seen in what it leaves."""
    x, y = np.arange(100, dtype=np.int32) - 50, np.full(100, 3, np.int32)
    z = np.zeros(100, np.int32)
    for optimised in (False, True):
        report = tilec.simulate(quotients, x, y, z, target=target, optimised=optimised)
        assert report.ok and (z == x // y).all()
    divide = divisions.divide

    def bare(fn, kind, a, b, sign, **_):
        return divide(fn, kind, a, b, sign, by_zero=False, wraps=False)

    monkeypatch.setattr(divisions, "divide", bare)
    planned = quotients.plan_launch(target, None, (x, y, z), {})
    records = records_of(records_for(quotients, planned).func, target)
    first = run(launch_of(planned, records), Wishes()).findings
    assert [f.kind for f in first] == ["undefined behaviour"] and "sdiv by 0" in first[0].message
    found = run(launch_of(planned, records.optimised), Wishes()).findings
    assert {"undefined behaviour", "out of bounds"} <= {f.kind for f in found}
    assert any("Z[100] is not in its shape (100,)" in f.message for f in found)
    assert any("takes for granted here" in f.message for f in found)
    line = first[0].locations[0].line
    assert all(f.locations[0].line == line for f in found)


@pytest.mark.parametrize(
    "name",
    ["GEMM, TMA + wgmma", "GEMM, TMA + ldmatrix", "split-K shared sums", "grouped, while",
     "GEMM, MFMA", "GEMM, cp.async", "transposition, wave64", "stencil by TMA"],
)  # fmt: skip
def test_what_llvm_makes_of_kernels_is_right(name: str) -> None:
    p = prepare(name)
    records = records_of(p.lowered, FAMILIES[name].target).optimised
    report = run(launch_of(p.planned, records, p.family.resident), Wishes(check_outputs=True))
    assert not report.findings and p.right()
    asm = [i for b in records.function.blocks for i in b.insts if i.opcode == "asm"]
    assert all(i.semantics is not None and i.instr for i in asm)


def test_findings_name_the_users_line_and_buffer() -> None:
    @tilec.kernel
    def outside(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((128,), "float32")
            T.copy(X[0:128], s)
            for i in T.Parallel(128):
                Y[i] = s[i * 3 % N]

    x = np.zeros(140, np.float32)
    plain, made = (
        tilec.simulate(outside, x, x.copy(), target="cuda:sm_80", optimised=o).findings
        for o in (False, True)
    )
    assert [(f.kind, f.buffer, f.locations) for f in made] == [
        (f.kind, f.buffer, f.locations) for f in plain
    ]
    assert made[0].kind == "out of bounds" and made[0].buffer == "s"


def test_options() -> None:
    x = np.zeros(64, np.int32)
    with pytest.raises(LaunchError, match="LLVM's optimiser has its own"):
        tilec.simulate(through, x, x, x.copy(), optimised=True, trace="Z[0]")
    with pytest.raises(LaunchError, match="optimised: expected a bool, got 1"):
        tilec.simulate(through, x, x, x.copy(), optimised=1)
    report = tilec.simulate(through, x, x, x.copy(), optimised=True)
    assert report.ok and "as LLVM's optimiser leaves it" in str(report)
