"""gfx942: no wave comes to a barrier before its accesses to LDS have ended, on whatever way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.codegen import amdgpu
from tilec.fuzz.waits import unfinished_at_barriers
from tilec.ir.schedule import Plan

M, N = T.dynamic("M, N")
GFX942 = "hip:gfx942"


@tilec.kernel
def written_last(
    A: T.Tensor((M, 256), "float32"),
    C: T.Tensor((M, 256), "float32"),
    D: T.Tensor((M, N, 256), "float32"),
):
    """Before the loop the wave has waited for LDS; at the loop's end it writes there."""
    with T.Kernel(M, threads=256) as bx:
        x = T.alloc_shared((256,), "float32")
        T.copy(A[bx, 0], x)
        for j in T.Parallel(256):
            C[bx, j] = x[255 - j]
        for k in T.serial(N):
            for j in T.Parallel(256):
                D[bx, k, j] = x[255 - j]
            for j in T.Parallel(256):
                x[j] = k


@tilec.kernel
def ping_pong(
    A: T.Tensor((M, 256), "float32"),
    C: T.Tensor((M, 256), "float32"),
    D: T.Tensor((M, N, 256), "float32"),
):
    with T.Kernel(M, threads=128) as bx:
        x, y = T.alloc_shared((256,), "float32"), T.alloc_shared((256,), "float32")
        T.copy(A[bx, 0], x)
        for j in T.Parallel(256):
            C[bx, j] = x[255 - j]
        for k in T.serial(N):
            for j in T.Parallel(256):
                y[j] = x[(j + 1) % 256] + D[bx, k, j]
            for j in T.Parallel(256):
                x[j] = y[255 - j]
        T.copy(x, C[bx, 0])


@tilec.kernel
def nested(
    A: T.Tensor((M, 256), "float32"),
    C: T.Tensor((M, 256), "float32"),
    D: T.Tensor((M, N, 256), "float32"),
):
    with T.Kernel(M, threads=256) as bx:
        x = T.alloc_shared((256,), "float32")
        for k in T.serial(N):
            for _ in T.serial(k):
                for j in T.Parallel(256):
                    D[bx, k, j] = x[255 - j]
                if k % 3 > 0:
                    for j in T.Parallel(256):
                        x[j] = k
            for j in T.Parallel(256):
                x[j] = A[bx, j]
        for j in T.Parallel(256):
            C[bx, j] = x[255 - j]


@tilec.kernel
def by_thread(
    A: T.Tensor((M, 256), "float32"),
    C: T.Tensor((M, 256), "float32"),
    D: T.Tensor((M, N, 256), "float32"),
):
    """Barriers in code of single threads."""
    with T.Kernel(M, threads=256) as bx:
        tx = T.get_thread_binding()
        x = T.alloc_shared((256,), "float32")
        x[tx] = A[bx, tx]
        C[bx, tx] = x[255 - tx]
        for k in T.serial(N):
            D[bx, k, tx] = x[255 - tx]
            x[tx] = D[bx, k, tx] + 1


PROGRAMS: tuple[Any, ...] = (written_last, ping_pong, nested, by_thread)


def compiled(kernel: Any) -> str:
    a, d = np.zeros((2, 256), np.float32), np.zeros((2, 3, 256), np.float32)
    return kernel.compile_with_plan(Plan("plain"), a, a, d, target=GFX942).asm


@pytest.mark.parametrize("kernel", PROGRAMS, ids=lambda k: k.__name__)
def test_lds_is_done_at_every_barrier(kernel: Any) -> None:
    text = compiled(kernel)
    assert "s_barrier" in text
    assert list(unfinished_at_barriers(text)) == []


def test_what_the_fences_alone_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM takes the wait away at the head of a loop: the reason why it is written out."""
    monkeypatch.setattr(amdgpu, "LDS_DONE", {64: 0xCF7F})  # waits for nothing
    found = list(unfinished_at_barriers(compiled(written_last)))
    assert found and all("s_barrier in .LBB" in words for words in found)


LOOP = """\
f:
    ds_read_b32 v1, v0
    s_waitcnt lgkmcnt(0)
.LBB0_1:
    {head}
    s_barrier
    ds_write_b32 v0, v1
    {tail}
    s_cbranch_scc1 .LBB0_1
    s_endpgm
"""


@pytest.mark.parametrize(
    ("head", "tail", "bad"),
    [
        ("s_nop 0", "s_nop 0", True),
        ("s_waitcnt lgkmcnt(0)", "s_nop 0", False),
        ("s_nop 0", "s_waitcnt vmcnt(0) lgkmcnt(0)", False),
        ("s_nop 0", "s_waitcnt vmcnt(0)", True),
        ("s_waitcnt lgkmcnt(1)", "s_nop 0", True),
        ("ds_bpermute_b32 v2, v0, v1", "s_waitcnt lgkmcnt(0)", False),
        ("s_branch .LBB0_2", "s_nop 0", False),
    ],
)
def test_the_walk(head: str, tail: str, bad: bool) -> None:
    text = LOOP.format(head=head, tail=tail) + ".LBB0_2:\n    s_endpgm\n"
    assert bool(list(unfinished_at_barriers(text))) is bad


NOTED = """\
f:
    s_mov_b64 s[10:11], -1
    s_cbranch_scc0 .LBB0_2
    ds_write_b32 v0, v1
    s_mov_b64 s[10:11], {note}
    {between}
.LBB0_2:
    s_andn2_b64 vcc, exec, s[10:11]
    s_cbranch_vccnz .LBB0_3
    s_barrier
.LBB0_3:
    s_endpgm
"""


@pytest.mark.parametrize(
    ("note", "between", "bad"),
    [
        ("0", "s_nop 0", False),  # what comes from here goes past the barrier
        ("-1", "s_nop 0", True),
        ("0", "s_mov_b32 s11, s3", True),
        ("0", "v_cmp_gt_i32_e64 s[10:11], v2, v3", True),
        ("0", "s_load_dwordx4 s[8:11], s[0:1], 0x0", True),
        ("0", "s_mov_b64 s[12:13], -1", False),
    ],
)
def test_the_walk_knows_by_which_way_a_wave_has_come(note: str, between: str, bad: bool) -> None:
    """As in program 327 of seed 221127 of the fuzzer, of which the walk said it wrongly."""
    text = NOTED.format(note=note, between=between)
    assert bool(list(unfinished_at_barriers(text))) is bad


LANES = """\
f:
    v_cmp_gt_i32_e32 vcc, 8, v0
    {off}
    s_cbranch_execz .LBB0_2
    v_mov_b32_e32 v3, 0
.LBB0_2:
    {on}
    ds_write_b32 v0, v1
    s_cbranch_execnz .LBB0_4
    s_barrier
.LBB0_4:
    {end}
    s_endpgm
"""

IF = "s_and_saveexec_b64 s[2:3], vcc"
BACK = "s_or_b64 exec, exec, s[2:3]"


@pytest.mark.parametrize(
    ("off", "on", "bad"),
    [
        (IF, BACK, False),  # a wave has begun with lanes, and those that went off are back
        ("s_mov_b64 s[2:3], exec\n s_and_saveexec_b64 s[4:5], vcc", BACK, False),
        (IF + "\n s_xor_b64 s[2:3], exec, s[2:3]", BACK, False),
        (
            IF + "\n s_xor_b64 s[2:3], exec, s[2:3]",
            "s_andn2_saveexec_b64 s[2:3], s[2:3]\n " + BACK,
            False,
        ),
        (
            IF + "\n s_xor_b64 s[2:3], exec, s[2:3]",
            "s_or_saveexec_b64 s[4:5], s[2:3]\n s_xor_b64 exec, exec, s[4:5]\n"
            " s_or_b64 exec, exec, s[4:5]",
            False,
        ),
        ("s_mov_b64 s[2:3], vcc\n s_andn2_b64 exec, exec, s[2:3]", BACK, False),
        ("s_nop 0", "s_nop 0", False),
        (IF, "s_nop 0", True),  # inside of the condition
        (IF, "s_or_b64 exec, exec, s[4:5]", True),
        (IF, "s_mov_b64 s[2:3], s[6:7]\n " + BACK, True),
        (IF, "s_load_dwordx4 s[0:3], s[8:9], 0x0\n " + BACK, True),
        (IF, BACK + "\n s_and_b64 exec, exec, vcc", True),
        (IF, BACK + "\n v_cmpx_gt_i32_e32 vcc, 8, v0", True),
        (IF + "\n s_xor_b64 s[2:3], exec, s[2:3]", "s_andn2_saveexec_b64 s[2:3], s[2:3]", True),
        ("s_mov_b64 s[2:3], vcc\n s_andn2_b64 exec, exec, s[2:3]", "s_nop 0", True),
    ],
)
def test_the_walk_knows_where_a_wave_has_lanes(off: str, on: str, bad: bool) -> None:
    """As in program 2 of seed 570185615, where LLVM writes a jump of code that all threads run as
    s_cbranch_execnz."""
    text = LANES.format(off=off, on=on, end="s_nop 0")
    assert bool(list(unfinished_at_barriers(text))) is bad
    # and on the way that is taken the access is found
    text = LANES.format(off=off, on=on, end="s_barrier")
    assert any("in .LBB0_4" in words for words in unfinished_at_barriers(text))
