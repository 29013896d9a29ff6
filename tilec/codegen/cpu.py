"""Code generation for the CPU: a kernel of the TILE contract as one LLVM module for the host.

    @name(ptr args, i32 first, i32 past, i32 gx, i32 gy, i32 gz)

runs the blocks [first, past) of a gx * gy * gz grid, counted with x fastest, one after the other;
who calls it spreads the blocks over threads. `args[i]` points at the value of ABI parameter i: for
a tensor the address of its data, for a size, stride or scalar the number. `passes.HOST` has made
loops of the tile ops and of what threads do; what is left is

    parallel      -> loops of vector code                                 (cpu_parallel, cpu_loops)
    gemm          -> calls of register-blocked micro-kernels              (cpu_gemm)

On-chip buffers lie on the stack if they are small, else in one scratch area that a call allocates
for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.codegen.cpu_access import MemRef
from tilec.codegen.cpu_emitter import LINE, Emitter
from tilec.codegen.cpu_loops import LoopEmitter
from tilec.codegen.cpu_machine import CpuFeatures, machine_of
from tilec.codegen.emitter import check_name, text_constant
from tilec.codegen.foreign import sources
from tilec.codegen.lanes import from_memory, memory_type
from tilec.ir.analysis import facts_of
from tilec.ir.core import Func, Param, Value, walk
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Function, Inst, Val, constant, int_val
from tilec.ir.llvm_printer import print_function
from tilec.ir.loc import Loc
from tilec.ir.ops import Alloc
from tilec.ir.types import BufferType
from tilec.target import Target

_PARAMS = (
    ("ptr", "noalias nocapture readonly", "%args"),
    *(("i32", "", f"%{name}") for name in ("first", "past", "gx", "gy", "gz")),
)
_GRID = tuple(Val("i32", f"%g{d}") for d in "xyz")
_LOOP_METADATA = ("!0 = distinct !{!0, !1}", '!1 = !{!"llvm.loop.unroll.disable"}')


def emit_cpu(func: Func, target: Target) -> str:
    """The LLVM text of `func` for the machine `target` (kind "cpu").

    Raises CompileError, at the user's line, for what has no meaning or no code on a CPU.
    """
    machine = machine_of(target)
    _check_dtypes(func)
    fn = Function(func.name, _PARAMS, linkage="", attrs="nounwind #0")
    e = LoopEmitter(fn, target, facts_of(func), _GRID)
    metadata = _tell_apart(e, func)
    for i, p in enumerate(func.params):
        _bind(e, p, i)
    for p in func.params:
        if isinstance(p.value.type, BufferType):
            _bind_tensor(e, p.value)
    entry = fn.block
    first = fn.label("blocks")
    fn.start(first)
    _blocks(e, func)
    fn.block, last = entry, fn.block
    release = _acquire_scratch(e)
    fn.br(first)
    fn.block = last
    if release is not None:
        fn.call("void", "free", [release])
    fn.ret()
    check_name(func.name, func.loc, fn.declarations)
    return _module(e, machine, metadata) + sources(func.body)


def _check_dtypes(func: Func) -> None:
    """Refuse what is narrower than a byte."""
    for p in func.params:
        _check_dtype(p.value, func.loc)
    for o in walk(func.body):
        for r in o.results:
            _check_dtype(r, o.loc)


def _check_dtype(v: Value, loc: Loc) -> None:
    dtype = getattr(v.type, "dtype", None)
    if dtype is not None and dtype.bits < 8:
        raise CompileError(
            f"{v.name or 'a value'}: {v.type} is narrower than a byte, which no CPU can address",
            loc,
            "use int8 or float8_e4m3",
        )


# --- parameters ---------------------------------------------------------------------------------


def _tell_apart(e: Emitter, func: Func) -> list[str]:
    """Metadata by which LLVM knows that two buffers do not overlap: one scope for each (one for all
    tensors of a kernel that `may_alias`)."""
    tensors = [p.value for p in func.params if isinstance(p.value.type, BufferType)]
    apart = [tensors] if func.attrs.get("may_alias") else [[v] for v in tensors]
    apart += [[r] for o in func.body.every(Alloc) for r in o.results]
    domain, first, count = 2, 3, len(apart)
    lines = [f"!{domain} = distinct !{{!{domain}}}"]
    lines += [f"!{first + i} = distinct !{{!{first + i}, !{domain}}}" for i in range(count)]
    for i, buffers in enumerate(apart):
        own, number = first + i, first + count + 2 * i
        others = ", ".join(f"!{first + j}" for j in range(count) if j != i)
        lines += [f"!{number} = !{{!{own}}}", f"!{number + 1} = !{{{others}}}"]
        e.tails.update((v, f", !alias.scope !{number}, !noalias !{number + 1}") for v in buffers)
    return lines


def _bind(e: Emitter, p: Param, number: int) -> None:
    """Read parameter `number` and bind it."""
    fn = e.f
    pointer = fn.load("ptr", fn.gep("ptr", Val("ptr", "%args"), int_val(number, "i64")), 8)
    if isinstance(p.value.type, BufferType):
        # Strides and safe value follow when all sizes are known.
        e.memories[p.value] = MemRef(fn.load("ptr", pointer, 8), p.value.dtype, ())
        return
    dtype = p.value.dtype
    value = fn.load(memory_type(dtype), pointer, dtype.bytes)
    e.env[p.value] = from_memory(fn, value, dtype)
    if p.role in ("size", "stride") or (p.role == "scalar" and dtype.is_int and dtype.bits > 8):
        kind = "zext" if dtype.kind == "uint" else "sext"
        e.extents[p.value.name] = fn.cast(kind, value, "i64")


def _bind_tensor(e: Emitter, v: Value) -> None:
    """Extents, strides and the slot of the safe value, 0 at first."""
    fn, t = e.f, v.buffer
    sizes = tuple(e.extent(n) for n in t.shape)
    if t.strides is not None:
        strides = tuple(e.extent(n) for n in t.strides)
    else:
        strides = _row_major(e, sizes)
    elem = memory_type(t.dtype)
    safe = fn.alloca(elem, t.dtype.bytes)
    fn.store(constant(elem, 0), safe, t.dtype.bytes)
    e.memories[v] = MemRef(e.memories[v].pointer, t.dtype, strides, sizes, safe, e.tails[v])


def _row_major(e: Emitter, sizes: Sequence[Val]) -> tuple[Val, ...]:
    strides = [int_val(1, "i64")]
    for size in reversed(sizes[1:]):
        strides.insert(0, e.f.mul(strides[0], size))
    return tuple(strides) if sizes else ()


# --- blocks -------------------------------------------------------------------------------------


def _blocks(e: Emitter, func: Func) -> None:
    """The body for each block from %first to before %past."""
    fn = e.f
    first, past = Val("i32", "%first"), Val("i32", "%past")
    body, done = fn.label("run"), fn.label("endblocks")
    (index,) = fn.loop_header("block", [first])
    head = fn.block.label
    fn.cbr(fn.icmp("slt", index.result, past), body, done, done)
    fn.start(body)
    gx, gy, _ = e.grid
    rows = fn.binary("udiv", index.result, gx)
    x = fn.binary("urem", index.result, gx)
    e.block_index = (x, fn.binary("urem", rows, gy), fn.binary("udiv", rows, gy))
    e.block(func.body)
    after = fn.binary("add", index.result, 1, "nsw")
    fn.close_loop([index], [after], head)
    fn.start(done)


def _acquire_scratch(e: Emitter) -> Val | None:
    """Allocate the scratch area in the entry block; what to free at the end (None: nothing was
    needed).

    The area is aligned by hand, because `malloc` is the one allocator that every host has.
    """
    if not e.scratch_bytes:
        return None
    fn = e.f
    area = fn.call("ptr", "malloc", [int_val(e.scratch_bytes + LINE, "i64")])
    assert area is not None
    number = fn.cast("ptrtoint", area, "i64")
    past = fn.binary("and", fn.binary("sub", int_val(0, "i64"), number), LINE - 1)
    text = f"getelementptr inbounds i8, {area}, {past}"
    fn.block.insts.append(Inst("getelementptr", e.scratch, (area, past), text))
    return area


# --- text ---------------------------------------------------------------------------------------


def _module(e: Emitter, machine: CpuFeatures, metadata: Sequence[str]) -> str:
    functions = [e.f, *e.kernels.functions.values()]
    declared = {name: text for f in functions for name, text in f.declarations.items()}
    strings = [text_constant(name, text) for text, name in e.texts.items()]
    if e.asserts:
        strings.append(f"@{e.f.name}.failed = global i32 0")
    width = machine.vector_bytes * 8
    attributes = (
        f'attributes #0 = {{ "min-legal-vector-width"="{width}" "prefer-vector-width"="{width}" }}'
    )
    parts = [*strings, *map(print_function, functions), *declared.values(), attributes]
    return "\n\n".join([*parts, "\n".join([*_LOOP_METADATA, *metadata])]) + "\n"
