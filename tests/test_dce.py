"""dce: what nobody needs goes, in one go; effects stay."""

from __future__ import annotations

from tilec.ir.core import Func
from tilec.ir.parser import parse_func
from tilec.ir.printer import print_block
from tilec.ir.verify import verify
from tilec.passes.utils.dce import sweep

PARAMS = (
    "%A: global<M x f32> = tensor A, %M: i32 = size A 0, %n: i32 = scalar n, %x: f32 = scalar x"
)


def func_of(body: str) -> Func:
    return parse_func(f"kernel @f {{}} ({PARAMS}) grid {{ yield [%M] }} body {{ {body} }}")


def swept(body: str) -> str:
    func = func_of(body)
    verify(func)
    done = sweep(func)
    verify(done)
    assert sweep(done) is done
    return print_block(done.body).strip()


def test_chains_of_unused_values() -> None:
    text = swept('%a = binary.add %n, %n %b = binary.mul %a, %a %v = load %A[%b] print "{}", [%n]')
    assert text == 'print "{}", [%n]'


def test_a_carried_value_that_only_feeds_itself() -> None:
    text = swept("""
      %o = const 1, i32
      %a, %b, %c = for.serial %o, %n, %o, [%o, %x, %n] body(%i: i32, %p: i32, %q: f32, %r: i32) {
        %d = binary.add %p, %r
        %e = unary.exp %q
        %f = binary.mul %r, %i
        yield [%d, %e, %f]
      }
      print "{}", [%c]
    """)
    assert text == (
        "%o = const 1, i32\n"
        "%c = for.serial %o, %n, %o, [%n] body(%i: i32, %r: i32) {\n"
        "  %f = binary.mul %r, %i : i32\n"
        "  yield [%f]\n"
        "} : i32\n"
        'print "{}", [%c]'
    )


def test_a_carried_value_another_one_needs_stays() -> None:
    text = swept("""
      %a, %b = while [%n, %n] cond(%p: i32, %q: i32) { %c = compare.lt %p, %M yield [%c] }
      body(%r: i32, %s: i32) {
        %d = binary.add %r, %n
        %e = binary.mul %s, %s
        yield [%d, %e]
      }
      print "done"
    """)
    assert text.startswith("%a = while [%n] cond(%p: i32) {") and "binary.mul" not in text


def test_unused_results_of_branches() -> None:
    text = swept("""
      %p = compare.lt %n, %M
      %a, %b = if %p, types=(i32, f32)
        then { %c = binary.add %n, %n %e = unary.exp %x yield [%c, %e] }
        orelse { yield [%n, %x] }
      print "{}", [%b]
    """)
    assert "%b = if %p, types=(f32) then {" in text and "binary.add" not in text


def test_buffers_that_lose_their_readers() -> None:
    text = swept("""
      %z = const 0, i32
      %s = alloc shared<4xf32> %t = alloc shared<4xf32> %u = alloc shared<4xf32>
      copy %A[%z], (4), %s[%z], (4)
      copy %s[%z], (4), %t[%z], (4)
      copy %t[%z], (4), %u[%z], (4)
      store %A[%z], %x
    """)
    assert text == "%z = const 0, i32\nstore %A[%z], %x"


def test_effects_and_loops_that_may_not_end_stay() -> None:
    body = """
      %z = const 0, i32
      while cond { %v = load %A[%z] %c = compare.gt %v, %x yield [%c] } body { yield }
      barrier
      use_swizzle 4
    """
    func = func_of(body)
    assert sweep(func) is func
