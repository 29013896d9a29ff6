"""The text form of the IR: what is printed, that it reads back, and what a mistake in it says."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interp import run_tile
from machine_speed import slower
from programs import PROGRAMS, expected

from tilec.ir import types as t
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Param, Region, Value
from tilec.ir.layout import MMA_C, LayoutRequest, blocked, row_major, swizzled
from tilec.ir.op_classes import OPS
from tilec.ir.ops import Binary, Const, For, If, Load, Print, While, Yield
from tilec.ir.ops.gather import Places
from tilec.ir.parser import ParseError, parse_func, parse_type
from tilec.ir.printer import op_form, print_block, print_func, print_op

INT = t.ScalarType(t.INT32)


def body_of(*lines: str, params: str = "") -> Func:
    text = "\n".join(lines)
    return parse_func(f"kernel @f {{}} ({params}) grid {{ yield }} body {{\n{text}\n}}")


def round_trip(func: Func) -> str:
    text = print_func(func)
    again = parse_func(text)
    assert print_func(again) == text
    return text


# --- every op -------------------------------------------------------------------------------------


def plausible(kind: str, name: str, values: dict[str, Value]) -> list[Any]:
    """Field values to try for an annotation, likely ones first."""
    buffers = [values["shared"], values["fragment"], values["barrier"], values["map"]]
    match kind:
        case "Value" | "Value | None":
            return [values["int"], *buffers, values["vector"], values["float"]]
        case "tuple[Value, ...]":
            return [(values["int"], values["int"]), (values["vector"],), (values["fragment"],)]
        case "Region" | "Region | None":
            at = (values["int"], values["int"])
            return [*(Region(v, at, (2, 3)) for v in buffers), Region(buffers[0])]
        case "Block":
            made = Builder()
            index = Value(INT, "i")
            total = made.value(Binary, "add", index, values["int"], name="total")
            made.emit(Yield, (total,))
            return [made.block((index,))]
        case "Places":
            made = Builder()
            tensor, *at = (Value(values[n].type, n) for n in ("shared", "int", "int"))
            made.emit(Yield, (made.value(Load, tensor, tuple(at)),))
            return [Places(made.block((tensor, *at)))]
        case "int":
            return [0, 3]
        case "bool":
            return [True]
        case "str":
            return ["eq"] if name == "kind" else ["plain", 'two "words" // and\nmore', "true"]
        case "float":
            return [0.1]
        case "bool | int | float":
            return [7]
        case "DType":
            return [t.FLOAT32, t.BFLOAT16]
        case "tuple[int, ...]":
            return [(2, 3), (), (5,)]
        case "tuple[str, ...]":
            return [("add", "max"), ()]
        case "Type" | "BufferType":
            return [t.BufferType((4, 6), t.FLOAT16, "shared", stages=3)]
        case "tuple[Type, ...]":
            return [(t.ScalarType(t.FLOAT64), t.VectorType(t.INT8, 4))]
        case "tuple[DType, ...]":
            return [(t.FLOAT32, t.INT64), ()]
        case "Layout | None":
            return [None, swizzled((64, 64), 16, 128)]
        case "tuple[tuple[str, Any], ...]":
            return [(("consumer_groups", 2), ("cluster", (2, 1, 1)), ("persistent", True)), ()]
        case "object":
            return [LayoutRequest("mma"), blocked((16, 8), 32, 1, 2), ("a", 1.5, None), 4]
    raise AssertionError(f"{name}: {kind} is a new kind of field: extend the generator")


def pool() -> dict[str, Value]:
    def value(name: str, type: t.Type) -> Value:
        return Value(type, name)

    map_type = t.TensorMapType("A", (1, 0), (64, 32), 128, t.FLOAT16)
    return {
        "int": value("n", INT),
        "float": value("x", t.ScalarType(t.FLOAT32)),
        "vector": value("v", t.VectorType(t.FLOAT32, 4)),
        "shared": value("S", t.BufferType((4, 6), t.FLOAT32, "shared", stages=2)),
        "fragment": value("F", t.BufferType((4, 6), t.FLOAT32, "fragment")),
        "barrier": value("b", t.BufferType((2,), t.INT64, "barrier")),
        "map": value("map", map_type),
    }


def variants(cls: type[Op], values: dict[str, Value]) -> list[Op]:
    """Ops of a class: fields at their defaults, then each field at each other plausible value."""
    fields = [f for f in dataclasses.fields(cls) if f.name not in ("results", "loc")]
    needed = [f for f in fields if f.default is dataclasses.MISSING]
    optional = [f for f in fields if f.default is not dataclasses.MISSING]
    choices = [plausible(str(f.type), f.name, values) for f in needed]
    for picked in itertools.islice(itertools.product(*choices), 20_000):
        fixed = dict(zip([f.name for f in needed], picked))
        try:
            cls(**fixed).infer()
        except Exception:
            continue
        break
    else:
        raise AssertionError(f"no plausible {cls.opname}: extend the generator")
    made = [fixed]
    for f, options in zip(needed, choices):
        made += [{**fixed, f.name: option} for option in options[1:]]
    for f in optional:
        options = plausible(str(f.type), f.name, values)
        made += [{**fixed, f.name: option} for option in options if option is not None]
    found = []
    for keywords in made:
        blocks = {n: keywords[n].clone({}) for n in cls.region_fields}
        o = cls(**{**keywords, **blocks})
        try:
            types = tuple(o.infer())
        except Exception:
            continue
        object.__setattr__(o, "results", tuple(Value(x) for x in types))
        found.append(o)
    return found


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_reads_back(name: str) -> None:
    values = pool()
    ops = variants(OPS[name], values)
    assert ops
    params = tuple(Param(v, "scalar", v.name) for v in values.values())
    func = Func("f", params, Block(), Block((), tuple(ops)))
    text = print_func(func)
    again = parse_func(text)
    assert print_func(again) == text
    there = dict(zip((p.value for p in params), (p.value for p in again.params)))
    for old, new in zip(ops, again.body.ops, strict=True):
        assert type(new) is type(old)
        for field in OPS[name].operand_fields:
            want, got = getattr(old, field), getattr(new, field)
            if isinstance(want, Region):
                assert got.extents == want.extents and got.buffer is there[want.buffer]
                want, got = want.offsets, got.offsets
            if isinstance(want, tuple):
                assert got == tuple(there[v] for v in want)
            else:
                assert got is there.get(want)
        for field in OPS[name].attribute_fields:
            want, got = getattr(old, field), getattr(new, field)
            if isinstance(want, Places):  # the text, which is equal, says the rest
                assert [a.type for a in got.body.args] == [a.type for a in want.body.args]
                want, got = ([type(o) for o in x.body.ops] for x in (want, got))
            assert got == want
        assert [r.type for r in new.results] == [r.type for r in old.results]


def test_no_two_fields_can_be_mistaken() -> None:
    for cls in OPS.values():
        positional = [f for f in op_form(cls).fields if f.positional]
        for a, b in zip(positional, positional[1:]):
            assert not (a.role == "values" and b.role == "values" and a.omit_empty)


# --- whole functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_read_back_and_mean_the_same(name: str) -> None:
    text, arguments = PROGRAMS[name]
    func = parse_func(text)
    again = parse_func(round_trip(func))
    args = arguments(np.random.default_rng(7))
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    want = expected(name, args)
    run_tile(func, args)
    run_tile(again, copies)
    for key, array in want.items():
        assert np.array_equal(args[key], copies[key])
        tolerance = 1e-2 if args[key].dtype == np.float16 else 1e-5
        np.testing.assert_allclose(args[key].astype(np.float64), array, tolerance, tolerance)


def test_text_is_what_the_docstring_says() -> None:
    func = body_of(
        "%S = alloc shared<64x32xf16, stages=2>",
        "%i = const 3, i32",
        "%x = load %S[%i, %i]",
        "%0 = binary.add %x, %x",
        "%y = for.serial %i, %i, %i, [%x] body(%k: i32, %a: f16) { yield [%a] }",
        'print "x = {}\\n", [%0]',
        "%b = compare.lt %i, %i",
        "%r = if %b, types=(f16) then { yield [%x] } orelse { yield [%y] }",
        params="%n: i64 = size A 1, %A: global<n x 8 x f32, strides=[s, 1], align=4> = tensor A",
    )
    assert round_trip(func) == (
        "kernel @f {} (\n"
        "  %n: i64 = size A 1,\n"
        "  %A: global<n x 8 x f32, strides=[s, 1], align=4> = tensor A,\n"
        ")\n"
        "grid {\n"
        "  yield\n"
        "}\n"
        "body {\n"
        "  %S = alloc shared<64x32xf16, stages=2>\n"
        "  %i = const 3, i32\n"
        "  %x = load %S[%i, %i] : f16\n"
        "  %0 = binary.add %x, %x : f16\n"
        "  %y = for.serial %i, %i, %i, [%x] body(%k: i32, %a: f16) {\n"
        "    yield [%a]\n"
        "  } : f16\n"
        '  print "x = {}\\n", [%0]\n'
        "  %b = compare.lt %i, %i : i1\n"
        "  %r = if %b, types=(f16) then {\n"
        "    yield [%x]\n"
        "  } orelse {\n"
        "    yield [%y]\n"
        "  }\n"
        "}\n"
    )


def test_names_are_made_unique_and_stay_so() -> None:
    build = Builder()
    first = [build.value(Const, 16, t.INT32, name=n) for n in ("acc", "acc", "acc_1", "", "", "7")]
    build.value(Const, 5, t.INT32, name="c16")
    build.value(Const, -5, t.INT32)
    build.value(Binary, "add", first[0], first[1], name="has space")
    text = print_block(build.block())
    names = [line.split(" =")[0] for line in text.splitlines()]
    assert names == [
        "%acc", "%acc_1", "%acc_1_1", "%c16", "%c16_1", "%_7", "%c16_2", "%0", "%has_space",
    ]  # fmt: skip
    round_trip(Func("f", (), Block(), build.block()))


def test_a_result_type_that_differs_from_the_inferred_one_is_kept() -> None:
    func = body_of("%a = const 1, i32 : f16", "%b = binary.add %a, %a : i64")
    assert "%a = const 1, i32 : f16" in round_trip(func)
    assert [o.result.type.dtype for o in func.body.ops] == [t.FLOAT16, t.INT64]


def test_locations_are_comments() -> None:
    func = parse_func(PROGRAMS["chain"][0])
    text = print_func(func, locs=True)
    line = next(n for n, s in enumerate(PROGRAMS["chain"][0].split("\n"), 1) if "exp2" in s)
    assert f"unary.exp2 %t : f32  // line {line}\n" in text
    assert print_func(parse_func(text)) == print_func(func)


def test_regions_may_reuse_names_and_misuse_survives() -> None:
    func = body_of(
        "%c = const true, i1",
        "if %c then { %v = const 1, i32 yield } orelse { %v = const 2, i32 yield }",
        "%w = binary.add %v, %v",
    )
    inside = func.body.ops[1].regions[1].ops[0].result
    assert func.body.ops[2].operands == (inside, inside)
    round_trip(func)


def test_empty_tuples_and_missing_operands() -> None:
    func = body_of(
        "%s = alloc local<f32>",
        "%x = load %s",
        "store %s, %x",
        "%n = const 0, i32",
        "for.serial %n, %n, %n, [] body(%i: i32) { yield }",
        'print "whole", buffer=%s',
        "print none",
        "while cond { %t = const true, i1 yield [%t] } body { yield }",
    )
    _, load, store, _, loop, whole, word, while_ = func.body.ops
    assert load.indices == store.indices == () and isinstance(loop, For) and loop.inits == ()
    assert isinstance(whole, Print) and whole.buffer is func.body.ops[0].result
    assert isinstance(while_, While) and not while_.body.args
    assert word.format == "none"
    round_trip(func)


def test_an_empty_else_is_an_empty_block() -> None:
    func = body_of("%c = const true, i1", "if %c then { yield }")
    assert isinstance(func.body.ops[1], If) and func.body.ops[1].orelse.ops == ()
    assert "orelse" not in round_trip(func)


# --- attributes and types -------------------------------------------------------------------------


def attributes() -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
    leaves = (
        numbers | st.text() | st.sampled_from([t.FLOAT16, t.BOOL, INT, t.VectorType(t.INT8, 2)])
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    )


@given(attributes())
def test_function_attributes_read_back(value: Any) -> None:
    func = Func("f", (), Block(), Block(), {"a": value, "b_2": [value]})
    again = parse_func(print_func(func))
    assert again.attrs == func.attrs
    assert type(again.attrs["a"]) is type(value)


def test_an_unknown_attribute_prints_and_reads_back() -> None:
    func = Func("f", (), Block(), Block(), {"x": frozenset({3})})
    assert round_trip(func).startswith('kernel @f {x=opaque("frozenset({3})")} (')


@pytest.mark.parametrize(
    "value", [0.1, 1e300, -1e-320, math.inf, -math.inf, 2.0**-149, 16777217.0, -0.0, 5, True, -3]
)
def test_literals_are_exact(value: float) -> None:
    build = Builder()
    build.emit(Const, value, t.FLOAT32)
    again = parse_func(round_trip(Func("f", (), Block(), build.block()))).body.ops[0]
    assert isinstance(again, Const) and type(again.value) is type(value)
    assert again.value == value and math.copysign(1, again.value) == math.copysign(1, value)


def test_nan_literal() -> None:
    (o,) = body_of("%a = const nan, f32").body.ops
    assert isinstance(o, Const) and math.isnan(o.value)


@pytest.mark.parametrize(
    "type",
    [
        *(t.ScalarType(d) for d in t.DTYPES.values()),
        t.VectorType(t.FLOAT4_E2M1, 16),
        t.TensorMapType("A", (2, 0, 1), (64, 1, 16), 0, t.BFLOAT16),
        t.TensorMapType("A", (1, 0), (64, 16), 0, t.BFLOAT16, (8, 64)),
        t.BufferType((), t.FLOAT32, "local"),
        t.BufferType((96, 176), t.INT4, "fragment"),
        t.BufferType(("x",), t.FLOAT16, "global"),
        t.BufferType(("max_len", 3, "K"), t.FLOAT8_E4M3, "global", ("s0", "x", 1), 2),
        t.BufferType((7,), t.UINT64, "barrier", stages=4),
        t.BufferType((16, 8), t.FLOAT32, "fragment", layout=MMA_C),
        t.BufferType((64, 64), t.FLOAT16, "shared", None, 16, swizzled((64, 64), 16, 128), 3),
        t.BufferType((96, 40), t.FLOAT16, "shared", layout=row_major((96, 40))),
    ],
    ids=str,
)
def test_types_read_back(type: t.Type) -> None:
    assert parse_type(str(type)) == type


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message", "column"),
    [
        ("%a = binray.add %x, %x", "there is no op 'binray'; did you mean 'binary'?", 6),
        ("%a = binary.add %x, %xx", "%xx is not defined; did you mean '%x'?", 21),
        ("%a = binary %x, %x", "binary takes a kind (binary.kind)", 6),
        ("%a = select.eq %x, %x, %x", "select takes no kind (select.kind)", 6),
        ("%a = const 1, f17", "there is no dtype 'f17'; did you mean 'f16'?", 15),
        ("%x = const 1, i32", "%x is defined twice", 1),
        ("%a, %b = const 1, i32", "const has 1 results, 2 are named", 10),
        ("%a = alloc shared<4xf16, verions=2>", "expected '>', found ','", 24),
        ("%a = alloc shared<4 f16>", "there is no dtype '4 f16'", 19),
        ("print x, bufer=%x", "print has no optional field 'bufer'; did you mean 'buffer'?", 10),
        ("%a = const ?, i32", "expected an attribute, found '?'", 12),
        ("%a = cast %x", "expected an attribute, found '}'", 1),
    ],
)  # fmt: skip
def test_mistakes_name_their_place(line: str, message: str, column: int) -> None:
    head = "kernel @f {} (%x: i32 = scalar x) grid { yield } body {\n"
    with pytest.raises(ParseError) as error:
        parse_func(head + line + "\n}")
    assert error.value.message.startswith(message)
    where = error.value.loc
    assert where is not None and where.col + 1 == column
    assert where.line == (3 if "found '}'" in message else 2)
    assert str(error.value).startswith(f"<ir>:{where.line}:{column}: ")
    assert str(error.value).splitlines()[2].index("^") == 4 + where.col


def test_text_that_ends_early() -> None:
    with pytest.raises(ParseError, match="found the end of the text"):
        parse_func("kernel @f {} () grid { yield } body {")
    with pytest.raises(ParseError, match="expected the end of the text, found 'x'"):
        parse_func("kernel @f {} () grid {} body {} x")


def test_printing_is_fast() -> None:
    build = Builder()
    x = build.value(Const, 1, t.INT32)
    for _ in range(500):
        x = build.value(Binary, "add", x, x)
    func = Func("f", (), Block(), build.block())
    print_func(func)
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        print_func(func)
        best = min(best, time.process_time() - start)
    assert best < 5e-3 * slower()


def test_one_op_for_a_message() -> None:
    build = Builder()
    a = build.value(Const, 4, t.INT32, name="a")
    made = build.emit(Binary, "mul", a, a)
    assert print_op(made) == "%0 = binary.mul %a, %a : i32"
