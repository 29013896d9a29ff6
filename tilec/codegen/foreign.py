"""How inline assembly and calls of functions in other languages are spelled for LLVM.

Functions given as LLVM IR are modules of their own behind the kernel's in its text, those given as
PTX a text that is put into LLVM's; `parted` tells them apart again. An empty text of "asm" says
that LLVM may end the process on what the user wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilec.codegen.casts import memory_type
from tilec.ir.core import Block, walk
from tilec.ir.errors import CompileError
from tilec.ir.extern_source import Signature, signatures, without_header
from tilec.ir.instr import instruction
from tilec.ir.instr.instruction import Operands
from tilec.ir.instr.semantics import Semantics
from tilec.ir.llvm import Function, Val
from tilec.ir.ops import Asm, AsmEffect, Extern, ExternEffect
from tilec.ir.semantics import np, numpy_dtype
from tilec.ir.types import DTYPES, DType
from tilec.target import Target

Foreign = Asm | AsmEffect | Extern | ExternEffect

_MARK = re.compile(r"^; === (llvm|ptx|asm) ===\n", re.MULTILINE)
_LANGUAGES = {"cuda": "PTX", "hip": "GCN assembly", "cpu": "x86 assembly"}


def call_foreign(
    f: Function, o: Foreign, target: Target, args: Sequence[Val], types: Sequence[str]
) -> list[Val]:
    """The results of `o`, in registers of LLVM's `types`."""
    if isinstance(o, Extern | ExternEffect):
        return _call(f, o, target, args, types)
    if o.target != target.kind:
        raise CompileError(
            f"this is {_LANGUAGES[o.target]}, the kernel is compiled for {target.name}",
            o.loc,
            f'compile it for a target "{o.target}…", or leave this out for others, by a parameter '
            "annotated T.constexpr",
        )
    held = [_register(f, x) for x in args]
    wanted = tuple(_INTS_OF.get(t, t) for t in types)
    effects, semantics = isinstance(o, AsmEffect), _semantics(o, wanted)
    own = _escaped(o.template), o.constraints, (), wanted, effects
    made = f.asm(instruction.Asm(*own, semantics=semantics), held, "asm")
    return [f.cast("bitcast", x, t) if x.type != t else x for x, t in zip(made, types)]


_INTS_OF = {"half": "i16", "bfloat": "i16"}


def _register(f: Function, x: Val) -> Val:
    """A narrow float as the bits that a register holds."""
    return f.cast("bitcast", x, _INTS_OF[x.type]) if x.type in _INTS_OF else x


def _escaped(text: str) -> str:
    return "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\{ord(c):02X}" for c in text)


def _call(
    f: Function, o: Extern | ExternEffect, target: Target, args: Sequence[Val], types: Sequence[str]
) -> list[Val]:
    signature = signatures(o.source)[o.name]
    if o.language == "ptx":
        if target.kind != "cuda":
            raise CompileError(
                f"{o.name} is PTX, the kernel is compiled for {target.name}",
                o.loc,
                "give it as LLVM IR, which all targets take",
            )
        return _call_ptx(f, o, signature, args, types)
    if isinstance(o, Extern) and any(o.counts):
        return _call_by_value(f, o, args, types)
    given = [_as(f, x, p.type) for x, p in zip(args, signature.parameters)]
    gives = signature.result.type if signature.result else "void"
    semantics = _semantics(o, [gives] if signature.result else [])
    made = f.call(gives, o.name, given, instr=f"extern.{o.name}", semantics=semantics)
    return [_as(f, made, t) for t in types[:1] if made is not None]


def _call_by_value(f: Function, o: Extern, args: Sequence[Val], types: Sequence[str]) -> list[Val]:
    """Through a function that is given the elements at each place, and gives them back."""
    taken, gives = [_MEMORY[v.dtype.short] for v in o.args], [_MEMORY[t.short] for t in o.types]
    given = [_as(f, x, t) for x, t in zip(args, taken)]
    result = "void" if not gives else gives[0] if len(gives) == 1 else _struct(gives)
    name = _by_value(o)
    made = f.call(result, name, given, instr=name, semantics=_semantics(o, gives))
    if made is None:
        return []
    if len(gives) == 1:
        return [_as(f, made, types[0])]
    return [_as(f, f.extract_value(made, n, t), types[n]) for n, t in enumerate(gives)]


def _struct(types: Sequence[str]) -> str:
    return "{ " + ", ".join(types) + " }"


def _by_value(o: Extern) -> str:
    shape = "".join(f".{n}{'w' * (k in o.written)}" for k, n in enumerate(o.counts))
    kinds = ".".join(dict.fromkeys(v.dtype.short for v in o.args))
    return f"{o.name}.values{shape}.{kinds}"


def _wrapper(o: Extern, stack_space: int) -> str:
    """The function by which `o` is called, as LLVM IR: LLVM takes its memory away again."""
    signature = signatures(o.source)[o.name]
    taken = [_MEMORY[v.dtype.short] for v in o.args]
    gives = [_MEMORY[t.short] for t in o.types]
    result = "void" if not gives else gives[0] if len(gives) == 1 else _struct(gives)
    lines: list[str] = []
    passed: list[str] = []
    space = f", addrspace({stack_space})" if stack_space else ""
    for k, (first, n) in enumerate(zip(o.firsts, o.counts)):
        type = taken[first]
        if not n:
            passed.append(f"{signature.parameters[k].type} %a{first}")
            continue
        lines.append(f"%m{k} = alloca [{n} x {type}], align 16{space}")
        if stack_space:
            lines.append(f"%p{k} = addrspacecast ptr addrspace({stack_space}) %m{k} to ptr")
        place = f"%p{k}" if stack_space else f"%m{k}"
        for e in range(n):
            lines.append(f"%e{k}.{e} = getelementptr {type}, ptr {place}, i64 {e}")
            lines.append(f"store {type} %a{first + e}, ptr %e{k}.{e}")
        passed.append(f"ptr {place}")
    own = signature.result.type if signature.result else "void"
    assigned = "%r = " if signature.result else ""
    lines.append(f"{assigned}call {own} @{o.name}({', '.join(passed)})")
    values = ["%r"] if signature.result else []
    for k in o.written:
        for e in range(o.counts[k]):
            lines.append(f"%v{k}.{e} = load {taken[o.firsts[k]]}, ptr %e{k}.{e}")
            values.append(f"%v{k}.{e}")
    whole = "poison"
    for n, (type, value) in enumerate(zip(gives, values)):
        if len(gives) > 1:
            lines.append(f"%s{n} = insertvalue {result} {whole}, {type} {value}, {n}")
            whole = f"%s{n}"
    ends = f"{result} {whole if len(gives) > 1 else values[0]}" if gives else "void"
    declared = ", ".join(p.type for p in signature.parameters)
    parameters = ", ".join(f"{t} %a{n}" for n, t in enumerate(taken))
    body = "\n  ".join([*lines, f"ret {ends}"])
    return (
        f"declare {own} @{o.name}({declared})\n"
        f"define {result} @{_by_value(o)}({parameters}) {{\n  {body}\n}}"
    )


_MEMORY = {d.short: memory_type(d) for d in DTYPES.values() if d.bits >= 8}


def _as(f: Function, x: Val, type: str) -> Val:
    return x if x.type == type else f.cast("bitcast", x, type)


def _call_ptx(
    f: Function,
    o: Extern | ExternEffect,
    signature: Signature,
    args: Sequence[Val],
    types: Sequence[str],
) -> list[Val]:
    """A call in inline assembly, which passes what a function takes where it takes it."""
    counted = Operands()
    outputs = [counted.outputs(_kind(t), 1)[0] for t in types]
    before, after, given, got = [], [], [], []
    for n, (x, p) in enumerate(zip(args, signature.parameters)):
        operand = counted.input(_kind(x.type))
        if p.space == "param":
            bits = p.dtypes[0].bits
            before += [f".param .b{bits} given{n};", f"st.param.b{bits} [given{n}], {operand};"]
            operand = f"given{n}"
        given.append(operand)
    if signature.result and outputs:
        operand = outputs[0]
        if signature.result.space == "param":
            bits = signature.result.dtypes[0].bits
            before.append(f".param .b{bits} got;")
            after.append(f"ld.param.b{bits} {operand}, [got];")
            operand = "got"
        got.append(operand)
    result = f"({', '.join(got)}), " if got else ""
    call = f"call.uni {result}{o.name}, ({', '.join(given)});"
    effects = isinstance(o, ExternEffect)
    wanted = tuple(_INTS_OF.get(t, t) for t in types)
    semantics = _semantics(o, wanted)
    made = counted.asm(
        " ".join(["{", *before, call, *after, "}"]), semantics, memory=effects, effects=effects
    )
    held = [_register(f, x) for x in args]
    found = f.asm(replace(made, outputs=wanted), held, f"extern.{o.name}")
    return [_as(f, x, t) for x, t in zip(found, types)]


def _kind(type: str) -> str:
    """The constraint of a register that holds LLVM's `type`."""
    return {"float": "f", "double": "d", "i32": "r", "i64": "l"}.get(type, "h")


def sources(block: Block, stack_space: int = 0) -> str:
    """What stands behind the module's text: the functions that a kernel calls, and a note of inline
    assembly."""
    found: dict[tuple[str, str], None] = {}
    for o in walk(block):
        if isinstance(o, Asm | AsmEffect):
            found["asm", ""] = None
        elif isinstance(o, Extern | ExternEffect):
            found[o.language, o.source] = None
            if isinstance(o, Extern) and any(o.counts):
                found["llvm", _wrapper(o, stack_space)] = None
    return "".join(f"; === {language} ===\n{source}\n" for language, source in found)


def host_loop(o: Extern, symbol: str) -> str:
    """A module with `void symbol(i64 count, ptr table)`, which calls the function of `o`, given as
    LLVM IR, so many times: the table has pointers to the values of each of `args`, then to where
    those of each result go."""
    signature = signatures(o.source)[o.name]
    by_value = any(o.counts)
    held = [_MEMORY[v.dtype.short] for v in o.args]
    given = held if by_value else [p.type for p in signature.parameters]
    stored = [_MEMORY[t.short] for t in o.types]
    own = signature.result.type if signature.result else "void"
    single = stored[:1] if by_value else [own]
    result = "void" if not stored else _struct(stored) if len(stored) > 1 else single[0]
    name = _by_value(o) if by_value else o.name
    begin, body = list[str](), list[str]()
    for n in range(len(held) + len(stored)):
        begin.append(f"%at{n} = getelementptr ptr, ptr %table, i64 {n}")
        begin.append(f"%p{n} = load ptr, ptr %at{n}")
    for n, (type, register) in enumerate(zip(held, given)):
        body.append(f"%e{n} = getelementptr {type}, ptr %p{n}, i64 %i")
        body.append(f"%x{n} = load {type}, ptr %e{n}")
        if register != type:  # a bool
            body.append(f"%y{n} = trunc {type} %x{n} to {register}")
    passed = ", ".join(
        f"{r} %{'x' if r == t else 'y'}{n}" for n, (t, r) in enumerate(zip(held, given))
    )
    body.append(f"{'%r = ' if stored else ''}call {result} @{name}({passed})")
    for k, type in enumerate(stored):
        value = "%r"
        if len(stored) > 1:
            value = f"%r{k}"
            body.append(f"{value} = extractvalue {result} %r, {k}")
        elif result != type:
            value = "%wide"
            body.append(f"{value} = zext {result} %r to {type}")
        body.append(f"%o{k} = getelementptr {type}, ptr %p{len(held) + k}, i64 %i")
        body.append(f"store {type} {value}, ptr %o{k}")
    lines = [
        f"declare {result} @{name}({', '.join(given)})",
        f"define void @{symbol}(i64 %count, ptr %table) {{",
        "entry:",
        *begin,
        "br label %head",
        "head:",
        "%i = phi i64 [ 0, %entry ], [ %next, %body ]",
        "%more = icmp ult i64 %i, %count",
        "br i1 %more, label %body, label %end",
        "body:",
        *body,
        "%next = add i64 %i, 1",
        "br label %head",
        "end:",
        "ret void",
        "}",
    ]
    return "\n".join(lines) + "\n" + sources(Block((), (o,)))


def with_functions(ptx: str, texts: Sequence[str]) -> str:
    """LLVM's PTX with the functions of some texts behind its header."""
    head, size, rest = ptx.partition(".address_size 64\n")
    return "".join([head, size, *(without_header(t) + "\n" for t in texts), rest])


def _semantics(o: Foreign, types: Sequence[str]) -> Semantics:
    """What `o` does in the simulator: what the user says it computes. `types`: LLVM's, of the
    results."""
    from_bits: list[Callable[[Any], Any]] = [_reader(v.dtype) for v in o.args]
    to_bits: list[Callable[[Any], Any]] = [*map(_writer, types)]

    def run(m: Any, *args: Any) -> tuple[Any, ...]:
        given = [np.asarray(m.full(x)) for x in args]
        with np.errstate(all="ignore"):
            found = o.evaluate([read(x) for read, x in zip(from_bits, given)])
        results = found if isinstance(found, tuple) else (found,)
        return tuple(m.full(write(x)) for write, x in zip(to_bits, results))

    return run


def _reader(dtype: DType) -> Callable[[Any], Any]:
    """From a register, where the simulator holds ints with a sign."""
    kind = numpy_dtype(dtype)
    return lambda x: x if x.dtype == kind else x.view(kind)


def _writer(type: str) -> Callable[[Any], Any]:
    """To a register of LLVM's `type`."""
    if type[0] != "i" or type == "i1":
        return lambda x: x
    return lambda x: np.ascontiguousarray(x).view(f"int{type[1:]}").reshape(np.shape(x))


def without_asm(llvm_text: str) -> str:
    """A module for what its code is like but for inline assembly, whose results are any."""
    text = re.sub(
        r"^( *%[\w.]+ = )call (.*?) asm .*$", r"\1freeze \2 poison", llvm_text, flags=re.M
    )
    return re.sub(r"^ *call void asm .*\n", "", text, flags=re.M)


def parted(text: str) -> tuple[str, list[tuple[str, str]]]:
    """A module's text without the sources behind it, and these with their languages."""
    if "; === " not in text:  # nearly always, and found in no time
        return text, []
    own, *rest = _MARK.split(text)
    return own, list(zip(rest[::2], rest[1::2]))
