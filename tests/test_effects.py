"""Effects of ops: every class states them, and passes that order, keep, guard or repeat ops ask
nothing else. `negate` is an op that no pass has heard of."""

from __future__ import annotations

import pytest

from tilec.frontend.statement_order import BadOrder, arrange
from tilec.ir.core import Effect, Effects, Func, Op, Region, Value, altered, walk
from tilec.ir.effects import is_clonable, is_seen, written_tensors
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import OPS, op
from tilec.ir.ops import Barrier, If
from tilec.ir.parser import parse_func
from tilec.passes.block_order import only_inside
from tilec.passes.insert_sync import insert_sync
from tilec.passes.utils.dce import sweep
from tilec.target import TARGETS

SM80 = TARGETS["cuda:sm_80"]
PARAMS = "%A: global<64xf16> = tensor A, %C: global<64xf16> = tensor C, %n: i32 = scalar n"


@op("negate")
class Negate(Op):
    """Changes the sign of each element of `dest`."""

    dest: Value

    def effects(self) -> Effects:
        return (Effect("update", Region(self.dest, (), self.dest.buffer.static_shape)),)


del OPS["negate"]  # the other tests' ops are tilec's


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "negate", Negate)


def func_of(body: str, **attrs: object) -> Func:
    text = f"kernel @f {{}} ({PARAMS}) grid {{ yield [%n] }} body {{ %z = const 0, i32 {body} }}"
    return parse_func(text).with_attrs(**attrs)


def names(func: Func) -> list[str]:
    return [o.opname for o in func.body.ops if not o.pure]


def test_a_class_without_a_statement_cannot_be_defined() -> None:
    with pytest.raises(InternalError, match="silent is not pure and does not state its effects"):

        @op("silent")
        class Silent(Op):
            value: Value

    assert "silent" not in OPS


def test_an_altered_op_says_anew_what_it_does() -> None:
    func = func_of("%s = alloc shared<64xf16> %f = alloc fragment<64xf16> negate %s")
    *_, other, negate = (o for o in func.body.ops if not o.pure)
    assert negate.effects()[0].buffer.name == "s" and negate.effects() is negate.effects()
    made = altered(negate, dest=other.result)
    assert made.effects()[0].buffer.name == "f" and made.loc == negate.loc
    assert negate.effects()[0].buffer.name == "s"


def test_threads_meet_around_an_op_that_changes_shared_memory() -> None:
    body = """
      %s = alloc shared<64xf16>, address=0
      copy %A[%z], (64), %s[%z], (64), engine=threads
      negate %s
      copy %s[%z], (64), %C[%z], (64), engine=threads
    """
    done = insert_sync(func_of(body, threads=128), SM80)
    assert names(done) == ["alloc", "copy", "barrier", "negate", "barrier", "copy"]
    alone = func_of("%f = alloc fragment<64xf16> negate %f", threads=128)
    assert not any(isinstance(o, Barrier) for o in walk(insert_sync(alone, SM80).body))


def test_what_is_seen_is_kept_and_guarded() -> None:
    func = func_of("%s = alloc shared<64xf16> negate %C negate %s")
    outside, inside = (o for o in func.body.ops if isinstance(o, Negate))
    tensor = func.param("C").value
    assert written_tensors(func.body) == {tensor}
    assert is_seen(outside) and not is_seen(inside)
    assert not is_clonable(outside, set()) and not is_clonable(inside, set())
    assert names(sweep(func)) == names(func), "what is changed has been read"
    guarded = only_inside(func.body.ops, func.param("n").value)
    assert [type(o) for o in guarded if not o.pure][1:] == [If, Negate]


def test_buffers_that_are_only_written_go() -> None:
    func = func_of("%s = alloc shared<64xf16> copy %A[%z], (64), %s[%z], (64)")
    assert names(sweep(func)) == []
    kept = func_of("%s = alloc shared<64xf16> copy %A[%z], (64), %s[%z], (64) negate %s")
    assert names(sweep(kept)) == ["alloc", "copy", "negate"]


def test_no_order_puts_it_before_what_it_changes() -> None:
    func = func_of("""
      for.pipelined %z, %n, %n body(%k: i32) {
        %s = alloc shared<64xf16>
        copy %A[%z], (64), %s[%z], (64)
        negate %s
        copy %s[%z], (64), %C[%z], (64)
        yield
      }
    """)
    (loop,) = (o for o in func.body.ops if o.regions)
    with pytest.raises(BadOrder, match="puts statement 1 .* before statement 0"):
        arrange(loop.regions[0], [1, 0, 2], [])
    assert arrange(loop.regions[0], [0, 1, 2], [])[0].ops
