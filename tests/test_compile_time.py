"""What keeps compiling fast, as facts: work that is not done twice, passes that do not run."""

from __future__ import annotations

import ast
import gc
import importlib
import re
import sys
import threading
from collections import Counter
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec import passes
from tilec.codegen.assemble import Assembled, assemble, with_min_blocks
from tilec.frontend.whole_loops.forms import WholeLoops
from tilec.ir import analysis, core
from tilec.ir.core import Block, Func, Op, Region, Value, altered, upstream, walk
from tilec.ir.errors import InternalError, ResourceError
from tilec.ir.llvm import Inst, Val
from tilec.ir.op_classes import OPS
from tilec.ir.ops import Binary, For, If, While
from tilec.ir.parser import parse_func
from tilec.ir.schedule import Plan
from tilec.ir.verify import verify
from tilec.jit.attempts import Attempt, Attempts
from tilec.jit.collector import collector_paused
from tilec.jit.compiled import FEW_SPILLED
from tilec.passes.block_order import growing
from tilec.passes.pad_tiles import pad_tiles
from tilec.sim import numbers
from tilec.support.syntax import copied, functions_within, names_within, nodes
from tilec.target import find_target
from tilec.tune import fit

SM90 = find_target("cuda:sm_90a")
N = T.dynamic("N")

PRODUCTS = """
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @k(ptr addrspace(1) %p, i64 %y, i64 %s) #0 {
  %y3 = add i64 %y, 3
  %y4 = add i64 %y, 4
  %m3 = mul i64 %y3, %s
  %m4 = mul i64 %y4, %s
  %a = getelementptr float, ptr addrspace(1) %p, i64 %m3
  %b = getelementptr float, ptr addrspace(1) %p, i64 %m4
  store float 1.0, ptr addrspace(1) %a
  store float 2.0, ptr addrspace(1) %b
  ret void
}
attributes #0 = { "nvvm.maxntid"="128" "nvvm.minctasm"="1" }
"""


@pytest.fixture
def no_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_PTXAS", "off")


@pytest.mark.skipif(llvm.llvm_version_info[0] != 22, reason="the pass is quadratic in LLVM 22")
def test_addresses_are_not_compared_with_one_another(no_ptxas: None) -> None:
    ptx = assemble(PRODUCTS, SM90).asm
    # Each has its product: the second was not made from the first, with which it was compared.
    assert len(re.findall(r"\b(?:mul|mad)\.", ptx)) == 2, ptx


def test_more_blocks_are_asked_for_without_llvm(no_ptxas: None) -> None:
    made = assemble(PRODUCTS, SM90)
    more = with_min_blocks(made, 8)
    anew = assemble(PRODUCTS.replace('minctasm"="1"', 'minctasm"="8"'), SM90)
    assert more.asm == anew.asm and more.llvm_text == anew.llvm_text
    assert ".minnctapersm 8" in more.asm and ".minnctapersm 1" in made.asm


def test_a_function_is_verified_once_for_each_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[tuple[Func, str]] = Counter()

    def verified(func: Func, contract: str, checked: set[Op]) -> None:
        asked.update([(func, contract)])

    monkeypatch.setattr(passes, "verify", verified)

    @tilec.kernel
    def scale(A: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
            for i in T.Parallel(128):
                A[b * 128 + i] *= 2.0

    for target in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"):
        scale.compile(tilec.spec((1024,), "float32"), target=target)
    # Each group of passes verifies what it begins with.
    assert asked and max(asked.values()) <= 2
    assert sum(asked.values()) < 3 * (len(passes.NORMALISE) + len(passes.DECIDE))


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cpu"])
def test_a_kernel_is_traced_once_for_its_choice_and_its_code(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    build = importlib.import_module("tilec.jit.build")
    traced: list[Any] = []
    trace = build.trace

    def counted(signature: Any, known: Any, forms: Any) -> Func:
        traced.append(known.constants)
        return trace(signature, known, forms)

    monkeypatch.setattr(build, "trace", counted)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")

    @tilec.kernel
    def scale(A: T.Tensor((N,), "float32"), BN: T.constexpr = T.auto(64, 128)):
        with T.Kernel(T.ceildiv(N, BN), threads=128) as b:
            for i in T.Parallel(BN):
                A[b * BN + i] *= 2.0

    scale.compile(tilec.spec((1024,), "float32"), target=target)
    assert sorted(c["BN"] for c in traced) == [64, 128]
    scale.compile(tilec.spec((1024,), "float32"), target=target, BN=32)
    assert [c["BN"] for c in traced[2:]] == [32]


def test_what_is_traced_serves_all_who_know_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets whose warps have as many lanes, and rows of any length; not other alignments."""
    build = importlib.import_module("tilec.jit.build")
    trace, known = build.trace, []
    monkeypatch.setattr(build, "trace", lambda s, k, f: known.append(k) or trace(s, k, f))

    @tilec.kernel
    def scale(A: T.Tensor((N, T.dynamic("M")), "float32"), BN: T.constexpr = T.auto(64, 128)):
        with T.Kernel(T.ceildiv(N, BN), threads=128) as b:
            for i in T.Parallel(BN):
                A[b * BN + i, 0] *= 2.0

    def compiled(pitch: int, length: int, target: str) -> Any:
        return scale.compile(tilec.spec((64, length), "float32", (pitch, 1)), target=target)

    made = [compiled(1008, n, f"cuda:{sm}") for sm in ("sm_90a", "sm_80") for n in (1008, 1001)]
    assert [dict(m.lowered.attrs).get("ragged") for m in made] == [None, ("A",), None, None]
    assert len(known) == 2, "of each of the tiles"
    compiled(1007, 1007, "cuda:sm_80")
    assert len(known) == 4
    compiled(1008, 1008, "hip:gfx942")
    assert len(known) == 6


def test_a_loop_becomes_a_program_once_for_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of tensors decides, not the sizes of tiles that are tried."""
    build = importlib.import_module("tilec.jit.build")
    form, trace, formed, traced = WholeLoops._form, build.trace, [], []
    monkeypatch.setattr(WholeLoops, "_form", lambda s, *a: formed.append(a[0]) or form(s, *a))
    monkeypatch.setattr(build, "trace", lambda s, k, f: traced.append(k) or trace(s, k, f))
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    K, L = T.dynamic("K, L")

    @tilec.kernel
    def product(
        A: T.Tensor((N, K), "float32"),
        B: T.Tensor((K, L), "float32"),
        C: T.Tensor((N, L), "float32"),
    ):
        for i, j in T.Parallel(N, L):
            total: T.float32 = 0
            for k in range(K):
                total += A[i, k] * B[k, j]
            C[i, j] = total

    def key_of(*shapes: tuple[int, int]) -> Any:
        return product.key_of([tilec.spec(s, "float32") for s in shapes], "cuda:sm_90a", {})

    first = key_of((64, 64), (64, 64), (64, 64))
    assert len(traced) > 20 and len(formed) == 1
    assert first.plan is not None and {n for n, _ in first.constants} == {"BM", "BN", "BK"}
    count = len(traced)
    key_of((64, 63), (63, 64), (64, 64))  # rows that begin anywhere
    assert len(traced) > count and len(formed) == 2


def test_operands_of_every_op_are_those_of_its_fields() -> None:
    generic = Op.__dict__["operands"].fget
    for cls in OPS.values():
        o = object.__new__(cls)
        for n, name in enumerate(cls.operand_fields):
            kind = str(cls.__dataclass_fields__[name].type)
            v = Value(None, f"{n}")  # type: ignore[arg-type]
            made = Region(v, (v, v)) if kind.startswith("Region") else v
            object.__setattr__(o, name, (v, v) if kind.startswith("tuple") else made)
        assert o.operands == generic(o), cls.opname
        for name in cls.operand_fields:
            if str(cls.__dataclass_fields__[name].type).endswith("| None"):
                object.__setattr__(o, name, None)
        assert o.operands == generic(o), cls.opname


CHAIN = """
kernel @k {threads=128} (%c: i1 = scalar c, %x: i32 = scalar x) grid { yield [] }
body {
  %a = binary.add %x, %x
  %b = binary.mul %a, %a
  %r = if %c, types=(i32) then {
    %i = binary.sub %a, %b
    yield [%i]
  } orelse { yield [%x] }
  %d = binary.add %r, %x
  %e = binary.add %x, %x
}
"""


def test_upstream_gives_each_op_once_behind_what_it_uses() -> None:
    func = parse_func(CHAIN)
    named = {r.name: r for o in walk(func.body) for r in o.results}
    defs = {r: o for o in walk(func.body) for r in o.results}
    found = [*upstream((named["d"],), defs)]
    assert len(set(found)) == len(found) and defs[named["e"]] not in found
    assert any(isinstance(o, If) for o in found) and isinstance(found[-1], Binary)
    for n, o in enumerate(found):
        if not o.region_fields:
            assert all(defs[v] in found[:n] for v in o.operands if v in defs)
    assert named["b"] in defs[named["r"]].uses  # what the branches use
    assert defs[named["a"]] not in [*upstream((named["b"],), defs, {named["a"]})]


class Counted(Attempts):
    """Attempts whose code spills as `spills` says; `made` has the plans that code was made of."""

    def __init__(self, spills: dict[str, int]) -> None:
        super().__init__(SM90)
        self.spills, self.made = spills, list[str]()

    def make(self, plan: Plan | None, func: Any, *_: Any) -> Attempt:
        assert plan is not None
        self.made.append(plan.name)
        spilled = self.spills[plan.name]
        told = (f"{spilled} bytes of registers spilled to local memory",) if spilled else ()
        return Attempt(plan, func, "", Assembled("", SM90, spilled_bytes=spilled, advisories=told))


def test_what_spills_much_is_not_made_again_with_other_stores() -> None:
    func = parse_func(CHAIN)
    few, much = FEW_SPILLED // 2, 10 * FEW_SPILLED
    attempts = Counted({"staged": much, "direct": 0, "wide": few, "wide direct": 0})
    for plan in (
        Plan("staged", specialise=True, staged_store=True, stages=4),
        Plan("direct", specialise=True, stages=5),
        Plan("wide", specialise=True, threads=256, staged_store=True),
    ):
        with pytest.raises(ResourceError, match="spill"):
            attempt(attempts, plan, func)
    attempt(attempts, Plan("wide direct", specialise=True, threads=256), func)
    assert attempts.made == ["staged", "wide", "wide direct"] and attempts.kept is not None


def test_what_spills_much_is_not_made_again_for_more_blocks() -> None:
    func = parse_func(CHAIN)
    much = 10 * FEW_SPILLED
    attempts = Counted({"walk": much, "two": much, "alone": much, "fewer": much})
    for plan in (
        Plan("walk", specialise=True, persistent=True),
        Plan("neighbours", specialise=True, persistent=True, cluster=(2, 1, 1)),
        Plan("two", split=2),
        Plan("four", split=4),
        Plan("alone", residents=2),  # without a sum that is shared it may fit
        Plan("more", residents=3),  # each of them has fewer registers
        Plan("fewer"),
    ):
        with pytest.raises(ResourceError, match="spill"):
            attempt(attempts, plan, func)
    assert attempts.made == ["walk", "two", "alone", "fewer"]


def attempt(attempts: Attempts, plan: Plan, func: Func) -> None:
    attempts.refuse(plan, func)
    attempts.check(plan, func)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
def test_the_collector_of_cycles_stands_still(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """It took 0.4 of the 1.6 s of a product of 1000x1001x1000."""
    seen: list[bool] = []
    run = fit.first_fit
    monkeypatch.setattr(fit, "first_fit", lambda *a: (seen.append(gc.isenabled()), run(*a))[1])
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")

    @tilec.kernel
    def twice(x: T.Tensor((N,), "float32"), y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as b:
            for i in T.Parallel(128):
                y[b * 128 + i] = x[b * 128 + i] * 2.0

    spec = tilec.spec((256,), "float32")
    assert gc.isenabled()
    twice.compile(spec, spec, target=target)
    assert seen == [False] and gc.isenabled()
    gc.disable()  # by the user
    try:
        twice.clear()
        twice.compile(spec, spec, target=target)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_goes_on_behind_an_error_and_the_last_thread() -> None:
    with pytest.raises(ValueError, match="x"), collector_paused(), collector_paused():
        raise ValueError("x")
    assert gc.isenabled()
    inside, out = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            inside.set()
            out.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    out.set()
    thread.join(10)
    assert gc.isenabled()


def test_the_same_code_is_assembled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of these rows can be brought by TMA: with producers or without, the code is one."""
    asked: list[str] = []

    def spilling(text: str, target: Any, *_: Any) -> Assembled:
        asked.append(text)
        return Assembled(text, target, b"", spilled_bytes=800, advisories=("800 bytes spilled",))

    monkeypatch.setattr(sys.modules["tilec.jit.attempts"], "assemble", spilling)

    @tilec.kernel
    def product(
        A: T.Tensor((65, 63), "float16"),
        B: T.Tensor((63, 67), "float16"),
        C: T.Tensor((65, 67), "float16"),
    ):
        with T.Kernel(2, 2, threads=128) as (x, y):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[y * 64, k * 32], a)
                T.copy(B[k * 32, x * 64], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[y * 64, x * 64])

    shapes = [(65, 63), (63, 67), (65, 67)]
    made = product.compile(*[tilec.spec(s, "float16") for s in shapes], target="cuda:sm_90a")
    tried = made.stages["plan"].count("tried: ")
    assert len(asked) == len(set(asked)) < tried


TILES = """
kernel @k {threads=128} (%n: i32 = scalar n) grid { yield [%n] }
body {
  %x = block_index 0
  %a = alloc shared<128x64xf16>
  %b = alloc shared<64x128xf16>
  %c = alloc fragment<128x128xf32>
  %zero = const 0, i32
  %one = const 1, i32
  for.pipelined %zero, %x, %one, num_stages=3 body(%k: i32) {
    gemm %a[%zero, %zero], (128, 64), %b[%zero, %zero], (64, 128), %c, policy=square
    yield
  }
}
"""


def test_a_tile_that_fits_an_instruction_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    func = parse_func(TILES)
    for name in ("facts_of", "safe_values", "changing_tensors"):
        monkeypatch.setattr(sys.modules["tilec.passes.utils.tile_ends"], name, None)
    assert pad_tiles(func, SM90) is func


def test_what_grows_along_a_grid_is_asked_of_known_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    func = parse_func(TILES)
    analysis.facts_of(func)
    monkeypatch.setattr(analysis.Facts, "__init__", None)
    assert growing(func) == {0}


def test_ops_are_sorted_by_class_once_for_all_who_ask() -> None:
    """In textual order, also those of several classes."""
    body = parse_func(CHAIN).body
    sorts = body._sorts
    for kind in (Binary, If, Binary | If, Op, While):
        assert [*body.every(kind)] == [o for o in walk(body) if isinstance(o, kind)]
    assert body.has(If, While) and body.has(Op) and not body.has(While, For)
    assert body._sorts is sorts


def test_nothing_is_visited_where_there_is_nothing_to_rewrite() -> None:
    func, value = parse_func(CHAIN), Value(None, "v")  # type: ignore[arg-type]
    x = func.params[1].value
    changed = func.body.rewrite(While, lambda o: None, {x: value})
    assert changed is not func.body and x not in {v for o in walk(changed) for v in o.operands}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(core.Block, "_rewritten", None)
        assert func.body.rewrite(While, lambda o: None) is func.body


def test_a_region_that_a_pass_keeps_is_not_looked_through_again() -> None:
    func = parse_func(CHAIN)
    (branch,) = func.body.every(If)
    known, checked = branch.then.inside, set[Op | Block]()
    verify(func, "TILE", checked)
    x = func.params[1].value
    changed = func.rewrite(Binary, lambda o: altered(o, rhs=x) if o.kind == "mul" else None)
    (after,) = changed.body.every(If)
    assert changed.body is not func.body and after.then is branch.then
    assert after.then.inside is known and branch.then in checked and changed.body not in checked
    b = next(o.result for o in func.body.every(Binary) if o.kind == "mul")
    assert b in branch.then.outer and branch.then.outer.isdisjoint(branch.then.made)
    verify(changed, "TILE", checked)
    gone = changed.with_body(changed.body.with_ops(changed.body.ops[2:]))
    with pytest.raises(InternalError, match="before its definition"):
        verify(gone, "TILE", checked)  # it is asked what a known region uses
    twice = changed.with_body(changed.body.with_ops((*changed.body.ops[:3], after)))
    with pytest.raises(InternalError, match="is defined twice"):
        verify(twice, "TILE", checked)


def test_a_changed_op_has_no_dict() -> None:
    """Of one that has, Python finds each field later than of one that has not."""
    op = next(parse_func(CHAIN).body.every(Binary))
    effects, made = op.effects(), altered(op, kind="sub")
    assert effects == () and (made.kind, made.lhs, made.results) == ("sub", op.lhs, op.results)
    assert op.copied() is not op and vars(op.copied()) == vars(op)


def test_syntax_is_copied_whole() -> None:
    (tree,) = ast.parse("for i, j in f(x, *y):\n  a[i:2, ...] += lambda q=1: (q.n, 'é')").body
    made = copied(tree)
    assert ast.dump(made, include_attributes=True) == ast.dump(tree, include_attributes=True)
    mine = {id(n) for n in nodes(made) if n._fields}
    assert mine.isdisjoint(map(id, nodes(tree))) and len([*nodes(made)]) == len([*nodes(tree)])


def test_names_are_looked_for_once_in_a_statement() -> None:
    (tree,) = ast.parse("for i in range(n):\n  def f(): pass\n  x = g(i)").body
    assert names_within(tree) == {"i", "range", "n", "x", "g"} and functions_within(tree) == {"f"}
    assert names_within(tree) is names_within(tree)


def test_the_simulator_looks_up_a_conversion_when_it_reads_it() -> None:
    kept: list[Any] = []

    def text_of(source: str, to: str) -> str:
        inst = Inst("zext", Val(to, "%y"), (Val(source, "%x"),), f"zext {source} %x to {to}")
        return numbers.spelled(inst, ["x"], lambda found: kept.append(found) or "K")

    assert (
        text_of("i8", "i32") == "applied(K, x)" and text_of("<2 x i8>", "<2 x i32>")[:4] == "each"
    )
    assert kept[0] is kept[1] and kept[0](np.int8(-1)) == np.int32(255)
    assert kept[0](np.array([1, -2], np.int8)).tolist() == [1, 254]
