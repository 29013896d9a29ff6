"""What may be done beside other work, where processors are idle, changes nothing of what comes
out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ring_programs import ONE_BLOCK, one_block_product

import tilec
import tilec.language as T
from tilec import passes
from tilec.codegen.ptxas import PtxasResult
from tilec.ir.core import Func
from tilec.ir.ops import Parallel
from tilec.ir.parser import parse_func
from tilec.support import ahead
from tilec.target import find_target
from tilec.tune.fit import first_fit

SM90 = find_target("cuda:sm_90a")
MODULE = sys.modules["tilec.codegen.assemble"]
M, N = T.dynamic("M, N")
SPECS = [tilec.spec((4096, 4096), "float32")] * 2


def sums() -> Any:
    @tilec.kernel
    def row_sums(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        for i in T.Parallel(M):
            total: T.float32 = 0
            for j in range(N):
                total += X[i, j]
            for j in range(N):
                Y[i, j] = X[i, j] / total

    return row_sums


class Assembler:
    """Reports what `told` says of a text, registers and spilled bytes; `together`: the most of its
    runs that went on at the same time, where each waits a while for another one."""

    def __init__(self, told: Callable[[str], tuple[int, int]], waits: bool = False) -> None:
        self.told, self.texts = told, list[str]()
        self._met = threading.Condition()
        self._waits, self._now, self.together = waits, 0, 0

    def __call__(self, ptxas: Any, ptx: str, arch: str) -> PtxasResult:
        with self._met:
            self.texts.append(ptx)
            self._now += 1
            self.together = max(self.together, self._now)
            self._met.notify_all()
            if self._waits:
                self._met.wait_for(lambda: self.together > 1, timeout=2)
            self._now -= 1
        registers, spilled = self.told(ptx)
        advisories = (f"{spilled} bytes of registers spilled",) if spilled else ()
        return PtxasResult(b"code", registers, spilled, 0, advisories, "")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def compile_with(kernel: Any, specs: Any, assembler: Assembler, idle: int) -> Any:
        monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
        monkeypatch.setattr(MODULE, "find_ptxas", lambda: "ptxas")
        monkeypatch.setattr(MODULE, "run_ptxas", assembler)
        monkeypatch.setattr(ahead, "idle_processors", lambda: idle)
        return kernel.compile(*specs, target="cuda:sm_90a")

    return compile_with


def many_registers(ptx: str) -> tuple[int, int]:
    return (64 if ".minnctapersm 1\n" not in ptx else 72), 0


def test_more_blocks_are_tried_beside(compiled: Callable[..., Any]) -> None:
    alone, beside = Assembler(many_registers), Assembler(many_registers, waits=True)
    one = compiled(sums(), SPECS, alone, 0)
    other = compiled(sums(), SPECS, beside, 8)
    assert one.asm == other.asm and ".minnctapersm 1\n" not in one.asm
    assert sorted(alone.texts) == sorted(beside.texts) and len(alone.texts) == 2
    assert (alone.together, beside.together) == (1, 2)


def shared_out() -> Any:
    @tilec.kernel
    def kernel(A: T.Tensor((64, 4096), "float32"), B: T.Tensor((64, 128), "float32")):
        """Groups that share the registers out themselves, without a product."""
        with T.Kernel(64, threads=256) as bx:
            s = T.alloc_shared((4096,), "float32")
            ready = T.alloc_barrier(128)
            x = T.get_thread_binding()
            if x >= 128:
                with T.ws(1):
                    T.set_max_nreg(24, 0)
                    T.tma_copy(A[bx, :], s, barrier=ready)
                    T.mbarrier_arrive(ready)
            else:
                with T.ws(0):
                    T.set_max_nreg(240, 1)
                    T.mbarrier_wait_parity(ready, 0)
                    total = T.alloc_local([1], "float32")
                    total[0] = 0
                    for k in T.serial(32):
                        total[0] += s[k * 128 + x]
                    B[bx, x] = total[0]

    return kernel


def test_registers_that_are_shared_out_by_hand_are_all_there(compiled: Callable[..., Any]) -> None:
    """More blocks on a multiprocessor would leave each fewer registers than it asks for: it would
    wait for ever."""
    specs = (tilec.spec((64, 4096), "float32"), tilec.spec((64, 128), "float32"))
    made = compiled(shared_out(), specs, Assembler(many_registers), 0)
    assert ".minnctapersm 1\n" in made.asm


def test_registers_that_are_shared_out_by_hand_come() -> None:
    a, b = np.ones((64, 4096), np.float32), np.zeros((64, 128), np.float32)
    report = tilec.simulate(shared_out(), a, b, blocks=2)
    assert report.ok, str(report)
    assert np.array_equal(b[:2], np.full((2, 128), 32.0))


def test_what_was_begun_in_vain_is_dropped(compiled: Callable[..., Any]) -> None:
    def few_registers(ptx: str) -> tuple[int, int]:
        return 32, 0

    alone, beside = Assembler(few_registers), Assembler(few_registers, waits=True)
    one = compiled(sums(), SPECS, alone, 0)
    other = compiled(sums(), SPECS, beside, 8)
    assert one.asm == other.asm and ".minnctapersm 1\n" in one.asm
    assert len(alone.texts) == 1 and len(beside.texts) == 2


@pytest.mark.parametrize("mended", [232, 240, None])
def test_shares_of_the_registers_are_tried_beside_each_other(
    compiled: Callable[..., Any], mended: int | None
) -> None:
    """Whichever of them fits is the one that is taken, the first if both do."""

    def spills(ptx: str) -> tuple[int, int]:
        first = f"setmaxnreg.inc.sync.aligned.u32 {mended}" in ptx
        own = ptx == assembler.texts[0]
        return 168, 8 if own else 0 if first else 16

    assembler = alone = Assembler(spills)
    one = compiled(one_block_product(), ONE_BLOCK, alone, 0)
    assembler = beside = Assembler(spills, waits=True)
    other = compiled(one_block_product(), ONE_BLOCK, beside, 8)
    assert one.asm == other.asm
    assert set(alone.texts) <= set(beside.texts)
    assert (alone.together, beside.together) == (1, 2)


def test_results_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for idle in (0, 8):
        monkeypatch.setattr(ahead, "idle_processors", lambda idle=idle: idle)
        done: list[int] = []

        def task(n: int, done: list[int] = done) -> int:
            done.append(n)
            return n

        found = ahead.in_turn([lambda n=n: task(n) for n in range(3)])
        assert next(found) == 0
        assert idle or done == [0], "without idle processors the others wait until they are asked"
        assert [*found] == [1, 2]


def test_an_error_is_raised_where_the_result_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> int:
        raise tilec.ResourceError("too large")

    for idle in (0, 8):
        monkeypatch.setattr(ahead, "idle_processors", lambda idle=idle: idle)
        first, second = ahead.begun([lambda: 1, failing])
        assert first() == 1
        with pytest.raises(tilec.ResourceError, match="too large"):
            second()


def spoiled(func: Func, _: Any) -> Func:
    """A pass that leaves a value without its definition."""
    (store,) = (o for o in func.body.ops if isinstance(o, Parallel))
    return func.with_body(replace(func.body, ops=(store, *func.body.ops)))


def crashing(func: Func, _: Any) -> Func:
    raise KeyError("what the pass before it has spoiled")


def refusing(func: Func, _: Any) -> Func:
    raise tilec.ResourceError("no room", func.loc)


@tilec.kernel
def scale(A: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
        for i in T.Parallel(128):
            A[b * 128 + i] *= 2.0


@pytest.mark.parametrize("behind", [(), (crashing,)])
@pytest.mark.parametrize("idle", [0, 8])
def test_what_a_pass_spoils_is_told_of(
    monkeypatch: pytest.MonkeyPatch, behind: tuple[Any, ...], idle: int
) -> None:
    """Also where it is verified beside the assembler, or a later pass cannot do with it."""
    func = scale.compile(tilec.spec((1000,), "float32"), target="cuda:sm_90a").stages["tile"]
    monkeypatch.setattr(ahead, "idle_processors", lambda: idle)
    monkeypatch.setattr(passes, "DECIDE", tuple((one, "TILE") for one in (spoiled, *behind)))
    monkeypatch.setattr(passes, "EXPAND", ())
    begun: list[Any] = []

    def accept(plan: Any, func: Func, verify: Callable[[], None]) -> None:
        begun.append(func)
        verify()

    with pytest.raises(tilec.InternalError, match="is used before its definition"):
        first_fit(parse_func(func), SM90, accept=accept)
    assert len(begun) == (not behind)


def test_a_plan_that_the_passes_refuse_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    func = parse_func(
        scale.compile(tilec.spec((1000,), "float32"), target="cuda:sm_90a").stages["tile"]
    )
    monkeypatch.setattr(passes, "NORMALISE", ())
    monkeypatch.setattr(passes, "DECIDE", ((lambda func, _: func, "TILE"), (refusing, "TILE")))
    monkeypatch.setattr(passes, "verify", None)  # whoever asks for it fails
    with pytest.raises(tilec.ResourceError, match="no room"):
        first_fit(func, SM90)
