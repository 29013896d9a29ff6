"""Calls of functions by their names in other systems, and source texts that bring some along."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilec import language as T
from tilec.builtins.lanes import VectorDType, find_vector
from tilec.frontend import decoders
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.asm import meaning
from tilec.frontend.builtins.pointers import moved, place_of
from tilec.frontend.builtins.rounding import cast
from tilec.frontend.builtins.scalar import find_first_set, permuted_bytes, upper_product
from tilec.frontend.builtins.table import BUILTINS, Call, builtin, dtype_at, traced
from tilec.frontend.expressions import Expressions
from tilec.frontend.extern_names import Known, known, names
from tilec.frontend.lanes import lanewise
from tilec.frontend.values import Address, Lanes, Literal, Number, Region, Scalar, describe
from tilec.ir.errors import did_you_mean
from tilec.ir.extern_source import Parameter, Signature, language_of, signatures
from tilec.ir.intervals import dtype_range
from tilec.ir.ops import Barrier, Bitcast, Extern, ExternEffect, Fma, Shuffle, ShuffleXor, WarpSync
from tilec.ir.ops.scalar import BINARY_KINDS, UNARY_KINDS
from tilec.ir.types import BOOL, DType

_WORDS = "write a T.macro in tilec's words: arithmetic, T.reinterpret, T.exp, …"
_MOST_AT_A_PLACE = 256
_NOTHING = ("handle", "void", "")
_CPP_FUNCTION = re.compile(r"__device__[^;{}()]*?\b(\w+)\s*\(")
_CPP = re.compile(r"__device__|__global__|__forceinline__|#\s*include|template\s*<|\bnamespace\b")


# --- sources --------------------------------------------------------------------------------------


def import_text(t: Expressions, c: Call, name: str) -> None:
    """Make the functions of an argument known, a source text; None has none."""
    if c[name] is None:
        return
    source, place = c.text(name, "give the text of the source"), c.place(name)
    if language_of(source):
        t.imported.update(dict.fromkeys(signatures(source), source))
        return
    functions = _CPP_FUNCTION.findall(source)
    t.foreign.update(dict.fromkeys(functions, t.frame.loc(place).line))
    if not any(map(decoders.decoder, functions)):
        what = "CUDA C++" if _CPP.search(source) else "no source that tilec compiles"
        named = f" ({', '.join(functions[:3])})" if functions else ""
        hint = f"give it as LLVM IR or PTX, or {_WORDS}"
        raise t.error(f"{name} of T.{c.builtin} is {what}{named}", hint, place)


builtin(T.import_source)(lambda t, c: import_text(t, c, "source"))


# --- calls ----------------------------------------------------------------------------------------


@builtin(T.call_extern, T.call_pure_extern, T.call_intrin)
@builtin(T.call_llvm_intrin, T.call_llvm_pure_intrin)
def call(t: Expressions, c: Call) -> object:
    given = list(c["args"])
    dtype = c["dtype"]
    if dtype is None and given:
        dtype = given.pop(0)
    name = given.pop(0) if given else None
    if not isinstance(name, str):
        message = f"the function that T.{c.builtin} calls is {describe(name)}, not a name"
        raise t.error(message, f'write T.{c.builtin}("float32", "expf", x)')
    wanted = _result(t, c, dtype)
    if name in t.imported:
        return _imported(t, c, signatures(t.imported[name])[name], wanted, given)
    if c["evaluate"] is not None:
        message = f"evaluate says what functions of T.import_source compute; {name} is none"
        raise t.error(message, "leave it out", c.place("evaluate"))
    if decoders.decoder(name) is not None:
        decoders.call_decoder(t, c, name, given)
        return None
    found = known(name)
    if found is None:
        raise _unknown(t, c, name)
    if name.startswith(("llvm.abs", "llvm.ctlz", "llvm.cttz")) and len(given) > 1:
        given.pop()  # whether some number has no result
    if "llvm" in c.builtin and len(given) == found.count + 1:
        given.pop(0)  # how many there are
    if len(given) != found.count:
        raise t.error(
            f"{name} takes {found.count} argument{'s' * (found.count != 1)}, {len(given)} "
            f"{'was' if len(given) == 1 else 'were'} given",
            f"write T.{c.builtin}(dtype, {', '.join([repr(name), *'abc'[: found.count]])})",
        )
    if any(isinstance(a, Lanes) for a in given):
        kind = wanted.dtype if isinstance(wanted, VectorDType) else wanted
        return lanewise(t, lambda *row: _number(t, c, name, found, kind, row), *given)
    if isinstance(wanted, VectorDType):
        message = f"T.{c.builtin} gives {wanted.name}, and no argument of {name} is a vector"
        raise t.error(message, f'write "{wanted.dtype.name}"')
    if found.word in _STATEMENTS:
        _statement(t, c, name, found, wanted)
        return None
    if found.word in _OF_WARPS:
        return _of_warp(t, c, found.word, wanted, given)
    if found.word == "load":
        return _load(t, c, name, wanted, given[0])
    return _number(t, c, name, found, wanted, given)


def _result(t: Expressions, c: Call, dtype: object) -> DType | VectorDType | None:
    if isinstance(dtype, str) and dtype in _NOTHING:
        return None
    return find_vector(dtype) or dtype_at(t, dtype, c.place("dtype"))


def _unknown(t: Expressions, c: Call, name: str) -> Exception:
    line = t.foreign.get(name)
    if line is not None:
        hint = f"give it as LLVM IR or PTX, or {_WORDS}"
        return t.error(f"{name} is CUDA C++ of line {line}, which tilec does not compile", hint)
    near = did_you_mean(name, [*t.imported, *names(), *decoders.EXAMPLES])
    return t.error(
        f"T.{c.builtin} knows no function {name!r}{near}",
        f"it knows tilec's own ({', '.join(decoders.EXAMPLES[:3])}, …) and numbers' (expf, __expf, "
        "fminf, …); give others as LLVM IR or PTX, T.import_source(text), or write a T.macro",
    )


def _imported(
    t: Expressions, c: Call, s: Signature, wanted: object, given: Sequence[object]
) -> object:
    """A call of a function that T.import_source has brought, lane by lane."""
    if any(isinstance(a, Lanes) for a in given):
        kind = wanted.dtype if isinstance(wanted, VectorDType) else wanted
        return lanewise(t, lambda *row: _one_imported(t, c, s, kind, row), *given)
    return _one_imported(t, c, s, wanted, given)


def _one_imported(
    t: Expressions, c: Call, s: Signature, wanted: object, given: Sequence[object]
) -> Any:
    used = (*s.parameters, *filter(None, [s.result]))
    odd = next((p for p in used if not p.dtypes and not _is_place(s, p)), None)
    if odd is not None:
        hint = "functions take numbers, and those of LLVM IR ptr; they give a number or nothing"
        raise t.error(f"{s.name} has to do with {odd.type}: {s}", hint)
    if len(given) != len(s.parameters):
        message = f"{s.name} takes {len(s.parameters)} arguments, {len(given)} were given: {s}"
        raise t.error(message, f"write T.{c.builtin}(dtype, {s.name!r}, …)")
    dtypes = s.result.dtypes if s.result else ()
    if (wanted not in dtypes) if s.result else wanted is not None:
        gives = " or ".join(d.name for d in dtypes) or "nothing"
        shown = wanted.name if isinstance(wanted, DType | VectorDType) else "void"
        hint = f'write "{dtypes[0].name if dtypes else "void"}"'
        raise t.error(f"T.{c.builtin} says {shown}, {s.name} gives {gives}: {s}", hint)
    values: list[Scalar] = []
    places: list[list[Region]] = []
    for n, (a, p) in enumerate(zip(given, s.parameters)):
        if _is_place(s, p):
            places.append(_elements(t, c, s, n, a))
            reads = not isinstance(a, Address) or a.access != "w"
            values += [
                t.load(e) if reads else t.constant(0, e.buffer.type.dtype) for e in places[-1]
            ]
            continue
        places.append([])
        x = t.number(a, f"an argument of {s.name}")
        if isinstance(x, Scalar) and x.dtype not in p.dtypes:
            message = f"{s.name} takes {p.type}, this is {describe(x)}: {s}"
            raise t.error(message, f"cast it: T.{p.dtypes[0].name}(x)")
        values.append(x if isinstance(x, Scalar) else t.constant(x, _of_literal(x, p.dtypes)))
    arguments = tuple(x.value for x in values)
    function = s.name, s.language, t.imported[s.name], arguments
    if s.result is None and not any(places):
        c.of("threads")
        t.emit(ExternEffect, *function, (), meaning(t, c))
        return None
    written = tuple(
        n
        for n, (a, elements) in enumerate(zip(given, places))
        if elements and not (isinstance(a, Address) and a.access == "r")
    )
    back = [e for n in written for e in places[n]]
    types = (*((wanted,) if s.result else ()), *(e.buffer.type.dtype for e in back))
    counts = tuple(map(len, places))
    made = t.emit(Extern, *function, types, counts, written, meaning(t, c))
    results = [t.scalar(r) for r in made.results]
    for element, value in zip(back, results[len(types) - len(back) :]):
        t.store(element, value)
    return results[0] if s.result else None


def _is_place(s: Signature, p: Parameter) -> bool:
    return s.language == "llvm" and p.type == "ptr"


def _elements(t: Expressions, c: Call, s: Signature, n: int, given: object) -> list[Region]:
    """What lies at a place: as many elements as are said, else those of an on-chip buffer from
    there on."""
    first = place_of(t, given, f"argument {n} of {s.name}", c.node)
    buffer = first.buffer
    dtype = buffer.dtype
    if dtype.bits < 8 or dtype is BOOL:
        message = f"argument {n} of {s.name} is in {describe(buffer)}"
        raise t.error(message, "use elements of a number's dtype, of a byte or more")
    said = given.extent if isinstance(given, Address) else None
    count = None if said is None else static_int(said)
    if said is None and not buffer.is_global:
        offsets = [static_int(x) for x in first.offsets]
        at = 0
        for offset, extent in zip(offsets, buffer.type.static_shape):
            at = at * extent + (offset or 0)
        count = None if None in offsets else math.prod(buffer.type.static_shape) - at
    if count is None or not 1 <= count <= _MOST_AT_A_PLACE:
        found = "…" if count is None else str(count)
        raise t.error(
            f"argument {n} of {s.name} is a place of {found} elements: their number must be known, "
            f"at most {_MOST_AT_A_PLACE}",
            'say it: T.access_ptr(x[i], "r", 4), or "w", or "rw"',
        )
    return [moved(t, first, e, count) for e in range(count)]


def _of_literal(x: Literal, dtypes: Sequence[DType]) -> DType:
    """Which of the dtypes that a parameter may have a literal takes."""
    if isinstance(x, float):
        return next((d for d in dtypes if d.is_float), dtypes[0])
    ints = [d for d in dtypes if d.is_int]
    return next((d for d in ints if dtype_range(d)[0] <= x <= dtype_range(d)[1]), dtypes[0])


def _check_result(t: Expressions, c: Call, name: str, gives: DType, wanted: DType | None) -> None:
    if wanted is not None and wanted is not gives:
        hint = f'write "{gives.name}", and cast the result'
        raise t.error(f"T.{c.builtin} says {wanted.name}, {name} gives {gives.name}", hint)


def _number(
    t: Expressions, c: Call, name: str, found: Known, wanted: DType | None, given: Sequence[object]
) -> Scalar:
    """A function of numbers, which are literals or of its dtype."""
    numbers = [t.number(a, f"an argument of {name}") for a in given]
    dtype = found.dtype
    if dtype is None:
        dtypes = [x.dtype for x in numbers if isinstance(x, Scalar)]
        dtype = dtypes[0] if dtypes else wanted
    values = []
    for x in numbers:
        signless = isinstance(x, Scalar) and dtype is not None and _signless(x.dtype, dtype)
        if isinstance(x, Scalar) and x.dtype is not dtype and not signless:
            assert dtype is not None
            hint = f"cast it: T.{dtype.name}(x)"
            raise t.error(f"{name} takes {dtype.name}, this is {describe(x)}", hint)
        values.append(t.run_time(x) if dtype is None else t.convert(x, dtype))
    result = _compute(t, c, found, values)
    if found.result is not None and result.dtype is not found.result:
        result = t.convert(result, found.result)
    gives = result.dtype
    if wanted is not None and _signless(gives, wanted):
        return t.convert(result, wanted)
    _check_result(t, c, name, gives, wanted)
    return result


def _signless(a: DType, b: DType) -> bool:
    """Whether both are ints of as many bits: LLVM and C's prototypes do not tell them apart."""
    return a.is_int and b.is_int and a.bits == b.bits


def _compute(t: Expressions, c: Call, found: Known, values: Sequence[Scalar]) -> Scalar:
    word, x = found.word, values[0]
    if word == "fma":
        return t.emit_scalar(Fma, *(v.value for v in values))
    if word in ("add_rn", "sub_rn", "mul_rn"):  # an op that becomes a part of no other
        y = values[1]
        one, none = (t.constant(n, x.dtype).value for n in (-1.0 if word[0] == "s" else 1.0, -0.0))
        three = (x, y, none) if word == "mul_rn" else (y, one, x)
        return t.emit_scalar(Fma, *(v.value if isinstance(v, Scalar) else v for v in three))
    if word in UNARY_KINDS and len(values) == 1:
        return t.unary(word, x)
    if word in BINARY_KINDS:
        return t.run_time(t.binary(word, x, values[1]))
    if word == "rcp":
        return t.run_time(t.binary("div", 1.0, x))
    if word == "saturate":
        return t.run_time(t.binary("min", t.binary("max", x, 0.0), 1.0))
    if word == "cast":
        assert found.result is not None
        if not found.mode:
            return t.convert(x, found.result)
        words = {"value": x, "dtype": found.result, "round": found.mode, "sat": None, "rbits": None}
        made = cast(t, Call(t, "cast", c.node, words, {}))
        assert isinstance(made, Scalar)
        return made
    if word == "bits":
        assert found.result is not None
        return t.emit_scalar(Bitcast, x.value, found.result)
    return traced(t, _WRITTEN[word], *values)


def _dp4a(a, b, total):  # type: ignore[no-untyped-def]
    """In the language of kernels."""
    for up in (24, 16, 8, 0):
        total = total + ((a << up) >> 24) * ((b << up) >> 24)
    return total


_WRITTEN: dict[str, Callable[..., Any]] = {
    "byte_perm": permuted_bytes, "dp4a": _dp4a, "ffs": find_first_set, "mulhi": upper_product,
}  # fmt: skip


# --- others ---------------------------------------------------------------------------------------

_OF_WARPS = {f.__name__: f for f in (T.match_any_sync, T.match_all_sync, T.ballot_sync, T.any_sync,
                                     T.all_sync, T.shfl_sync, T.shfl_xor, T.shfl_up, T.shfl_down,
                                     T.activemask)}  # fmt: skip


def _of_warp(
    t: Expressions, c: Call, word: str, wanted: DType | None, given: Sequence[object]
) -> Number:
    """A word of warps: its arguments stand behind the mask of the lanes that come, as its author
    says, wherever it stands."""
    names = inspect.signature(_OF_WARPS[word]).parameters
    values = {n: p.default for n, p in names.items()} | dict(zip(names, given[1:]))
    if "mask" in values:
        values["mask"] = given[0]
    ops, begun = t.builder.ops, len(t.builder.ops)
    made = BUILTINS[_OF_WARPS[word]].handler(t, Call(t, word, c.node, values, {}))
    for n, o in enumerate(ops[begun:], begun):
        if isinstance(o, Shuffle | ShuffleXor):
            ops[n] = replace(o, promised=True)
    result = t.run_time(t.number(made, f"what T.{word} gives"))
    return result if wanted is None or result.dtype.is_float else t.convert(result, wanted)


_STATEMENTS = ("pause", "sync_threads", "sync_warp")


def _statement(t: Expressions, c: Call, name: str, found: Known, wanted: DType | None) -> None:
    if wanted is not None:
        raise t.error(f"{name} gives nothing, T.{c.builtin} says {wanted.name}", 'write "void"')
    c.of("threads")
    if found.word == "sync_threads":
        t.emit(Barrier)
    elif found.word == "sync_warp":
        t.emit(WarpSync)
    # A pause is no order of anything: without one a program means the same.


def _load(t: Expressions, c: Call, name: str, wanted: DType | None, given: object) -> Number:
    place = place_of(t, given, f"the argument of {name}", c.node)
    if not place.buffer.is_global:
        hint = "index it: x = A[i]"
        raise t.error(f"{name} reads global memory, this is in {describe(place.buffer)}", hint)
    _check_result(t, c, name, place.buffer.type.dtype, wanted)
    return t.load(place)
