"""From a traced kernel to an image: plans, passes, code generation, assembly, each stage kept to
be read.

This is the compiler as a whole; it is loaded when the first variant has to be compiled, so that a
program whose kernels all come from the disk cache never loads LLVM for a GPU target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, fields, replace

from tilec import passes
from tilec.builtins.choices import Auto
from tilec.codegen.assemble import Assembled
from tilec.codegen.disassemble import disassemble
from tilec.codegen.isolated import Ended
from tilec.frontend import Forms, Signature, Specialisation, TensorFact, bind_constants, trace
from tilec.ir import ops
from tilec.ir.caller import told_as_internal
from tilec.ir.clusters import SINGLE, cluster_of, first_of_all, parts_of, split_of
from tilec.ir.core import Func, Param, upstream, walk
from tilec.ir.effects import written_tensors
from tilec.ir.errors import CompileError, InternalError, PerformanceWarning, ResourceError, warn
from tilec.ir.printer import print_func
from tilec.ir.python_text import assumed_text, grid_text
from tilec.ir.schedule import Plan
from tilec.ir.types import DTYPES, BufferType, ScalarType, TensorMapType, rows_along
from tilec.ir.uniformity import threads_show
from tilec.jit.attempts import Attempts, Settled, occupancy
from tilec.jit.compiled import ASSEMBLY, FEW_SPILLED, CompiledKernel
from tilec.jit.performance import Watch
from tilec.jit.plan_text import Tried, plan_text
from tilec.jit.specialise import SpecialisationKey
from tilec.jit.stages import Dump, Stages
from tilec.passes.join_blocks import join_blocks, to_join
from tilec.passes.select_gemm import check_threads
from tilec.runtime.devices import blocks_at_once
from tilec.runtime.image import AbiParam, Argument, Image, Resources
from tilec.target import Target, find_target
from tilec.tune import fit
from tilec.tune.choose import KEPT
from tilec.tune.extents import said_to_fit
from tilec.tune.plans import GROUP_ROWS, GROUP_THREADS
from tilec.tune.rank import Candidate

MOST_SPREAD = 512  # threads that fragments are spread over: four warpgroups have registers for them
_FORMATS = {"cuda": "cubin", "hip": "hsaco", "cpu": "object"}


class OnlySimulated(CompileError):
    """The target cannot do what the simulator can do for it."""


class Kept:
    """What has been traced, by what the trace knows; what loops over whole tensors have become, by
    what is known of them: all but the sizes of tiles."""

    def __init__(self) -> None:
        self.funcs: dict[Hashable, Func] = {}
        self.forms: dict[Hashable, Forms] = {}


def trace_variant(signature: Signature, key: SpecialisationKey, kept: Kept | None = None) -> Func:
    """The kernel's TILE form under `key`. What is traced is `kept` by what the trace knows: of the
    target it is the lanes of a warp, and nothing of how long rows are. Raises CompileError."""
    target = find_target(key.target)
    if key.threads is not None and target.kind != "cpu":
        check_threads(key.threads, target, None)  # the launch asks for them
    known = Specialisation(
        tensors={
            a.name: TensorFact(a.shape, DTYPES[a.dtype], a.strides, a.align)
            for a in key.traced
            if a.kind == "tensor"
        },
        scalars={a.name: DTYPES[a.dtype] for a in key.arguments if a.kind == "scalar"},
        constants=key.values,
        threads=key.threads,
        grid="launch" if key.grid_given else None,
        wide=key.wide,
        warp_size=32 if target.kind == "cpu" else target.warp_size,
        row_lanes=0 if target.kind == "cpu" or key.may_alias else target.warp_size,
        together=0 if signature.tiles is None else blocks_at_once(key.target),
        magnitudes={name: (about, unit) for name, about, unit in key.magnitudes},
        asserts="fatal" if key.debug else "noted" if key.simulated else "",
    )
    kept = Kept() if kept is None else kept
    about = _hashable(key, known)
    func = kept.funcs.get(about)
    if func is None:
        sizes = {*(signature.tiles or {}).values()}
        rest = tuple(c for c in key.constants if c[0] not in sizes)
        forms = kept.forms.setdefault(_hashable(replace(key, constants=rest), known), {})
        func = trace(signature, known, forms)
        if key.may_alias:
            func = func.with_attrs(may_alias=True, passed_twice=True)
        with told_as_internal("preparing this kernel", signature.loc):
            for each in passes.TRACED:
                func = each(func)
        kept.funcs[about] = func
    for one in passes.OPERANDS:
        func = one(func, target)
    if target.has("tma") and (ragged := _ragged(func, key)):
        func = func.with_attrs(ragged=ragged)
    if dense := _dense(func, key):
        func = func.with_attrs(dense=dense)
    if multiples := _multiples(func, key):
        func = func.with_attrs(multiples=multiples)
    if key.packed:
        func = func.with_attrs(packed=key.packed)
    if leaves_sizes(signature):
        return func  # which are chosen for what lines of memory take, and for these threads
    if more := _more_threads(func, target):
        func = func.with_attrs(more_threads=more)
    for one in passes.SIZED:
        func = one(func, target)
    return func


def leaves_sizes(signature: Signature) -> bool:
    """Whether the author leaves a size to tilec."""
    return any(isinstance(p.default, Auto) for p in signature.parameters)


def _more_threads(func: Func, target: Target) -> int:
    """How many threads may compute products in place of the author's: a second warpgroup where he
    has one, which nobody sees, and both have rows of their own (what they exchange otherwise the
    score does not know); 0 if no others. (Passes may take out what would show.)"""
    one = func.attrs.get("threads") == GROUP_THREADS and target.has("setmaxnreg")
    one = one and not func.attrs.get("min_blocks")  # which he has counted registers for
    rows = [o.shape[0] for o in func.body.every(ops.Gemm)]
    each = bool(rows) and all(r % (2 * GROUP_ROWS) == 0 for r in rows)
    return 2 * GROUP_THREADS if one and each and not threads_show(func) else 0


def _hashable(key: SpecialisationKey, known: Specialisation) -> Hashable:
    """What `known` says under `key`, whose texts tell the constants apart."""
    facts = (getattr(known, f.name) for f in fields(known) if f.name != "constants")
    told = (tuple(fact.items()) if isinstance(fact, dict) else fact for fact in facts)
    return key.source, key.constants, key.may_alias, *told


def _ragged(func: Func, key: SpecialisationKey) -> tuple[str, ...]:
    """The written tensors whose rows are no whole 16 bytes, see `ragged_tensors`."""
    viewed = func.attrs.get("viewed", ())
    rows = {a.name for a in key.arguments if a.kind == "tensor" and a.row < 16 <= a.align}
    rows -= {*viewed}
    for p in func.params:
        if p.role == "tensor" and p.arg in viewed:
            t = p.value.buffer
            rows |= {p.arg} if t.static_shape[-1] * t.dtype.bits % 128 else set()
    return tuple(sorted(rows & stored(func))) if rows else ()


def _multiples(func: Func, key: SpecialisationKey) -> tuple[tuple[str, int], ...]:
    """The sizes that something is divided by, or that end rows of which loops take elements, and of
    which a tensor's rows tell what divides them: that (a power of two)."""
    divided = (o for o in func.body.every(ops.Binary) if o.kind in ops.DIVISIONS)
    numbers = func.body.defs
    behind = {v for o in upstream([o.rhs for o in divided], numbers) for v in o.operands}
    behind |= {o.rhs for o in func.body.every(ops.Binary) if o.kind in ops.DIVISIONS}
    ends = {e for o in func.body.every(ops.ElementAccess) for e in o.buffer.buffer.shape[-1:]}
    sizes = {p.value.name: p.value for p in func.params if p.role == "size"}
    found: dict[str, int] = {}
    for p in func.params:
        a = next((a for a in key.arguments if a.name == p.arg), None)
        if p.role != "tensor" or a is None or a.row > a.align or len(a.shape) < 2:
            continue
        t = p.value.buffer
        strides, extent, per = t.strides or (1,), t.shape[-1], a.row * 8 // t.dtype.bits
        begins = rows_along(strides) == len(strides) - 1 and all(
            isinstance(s, str) or s * t.dtype.bits % (8 * a.row) == 0 for s in strides[:-1]
        )
        wanted = extent in ends or sizes.get(str(extent)) in behind
        if a.name not in key.packed and extent in sizes and wanted and per > 1 and begins:
            found[str(extent)] = max(per, found.get(str(extent), 1))
    return tuple(found.items())


def _row(a: Argument) -> int | str:
    """How long the rows of a tensor are."""
    return a.shape[rows_along(a.strides)] if a.shape else 1


def _dense(func: Func, key: SpecialisationKey) -> tuple[tuple[str, int], ...]:
    """The tensors whose rows have no gaps, with the alignment of their addresses, where that tells
    more than the rows do; with them those that the call allocates."""
    found = {a.name: a.dense for a in key.traced if a.dense}
    made = {name: 16 for name, _, _ in func.attrs["outputs"]} if found else {}
    return tuple(sorted({**made, **found}.items()))


def compile_variant(
    signature: Signature, key: SpecialisationKey, func: Func, plan: Plan | None = None
) -> CompiledKernel:
    """Compile `func`, the kernel traced under `key`, keeping every stage: with this plan where one
    is given, else with the first without fault of those that were chosen, then of the safe ones
    (unless under `key.only_ranked`: a ResourceError if all of them spill).

    Raises CompileError and its kinds: OnlySimulated where the simulator can run it for the target,
    InternalError where the parts of the compiler contradict one another."""
    target = find_target(key.target)
    if not key.simulated and not target.has("printf"):
        _refuse_prints(func, key.target)
    if not key.simulated and not target.has("inline_asm"):
        _refuse_asm(func, target)
    stages, dump = Stages(), Dump(func.name)

    def keep(name: str, text: Callable[[], str]) -> None:
        stages.add(name, text)
        dump.stage(name, lambda: stages[name])

    runs, watch = Counter[str](), Watch()

    def keep_pass(name: str, after: Func) -> None:
        watch.see(name, after)
        runs[name] += 1  # a pass that runs again gets a number
        keep(f"{name}-{runs[name]}" if runs[name] > 1 else name, lambda: print_func(after))

    keep("tile", lambda: print_func(func))
    tried: list[Tried] = []
    ranked = () if key.plan is None else (key.plan, *key.ranked)
    attempts = Attempts(target, ranked)
    asked_for = not key.only_ranked and not _can_choose(signature, func)
    if plan is None:
        try:
            final = _first_good(func, target, keep_pass, ranked, tried, attempts, key.only_ranked)
        except ResourceError as error:
            if not error.may_spill or not asked_for:
                more = "" if key.only_ranked else said_to_fit(func, target)
                error.hint += f"\n{more}" if more else ""
                raise
            runs.clear()
            asked_for = False  # and said
            final, attempts = _spread(func, target, keep_pass, tried, error) or _spilling(
                func, target, keep_pass, tried, attempts, error
            )
    else:
        final = passes.run_plan(func, target, plan, keep_pass)
        tried.append((plan, None))
    if tried:
        keep("plan", lambda: plan_text(tried, key, final))
    watch.warn(func, final, target)
    made = attempts.kept or attempts.make(plan, final)
    kept = tried[-1][0] if tried else None
    if kept is not None:
        func = join_blocks(to_join(func, kept.joined), target)
    final, llvm_text, assembled = made.func, made.llvm_text, made.assembled
    few = min(FEW_SPILLED, assembled.registers or FEW_SPILLED)  # a quarter of what these hold
    if asked_for and (assembled.spilled_bytes or 0) > few and not made.spared:
        watch.warn_of_spills(assembled.spilled_bytes or 0, target, signature.tiles is not None)
    keep("llvm", lambda: llvm_text)
    keep("llvm-opt", lambda: assembled.llvm_opt)
    keep(ASSEMBLY[target.kind], lambda: assembled.asm)
    if target.kind == "cuda" and assembled.binary is not None:
        binary = assembled.binary
        stages.add("sass", lambda: disassemble(binary, target))
        if dump.wants("sass") and "sass" in stages:
            dump.stage("sass", lambda: stages["sass"])
    image = _image(signature, key, func, final, assembled, kept)
    compiled = CompiledKernel(image, stages, None if target.kind == "cpu" else final)
    if key.simulated and made.func is final:
        compiled.emitted = made.emitted
    return compiled


def lowered_again(
    func: Func, image: Image, plan: Plan, on_stage: passes.OnStage | None = None
) -> Func:
    """The traced `func` after the passes, as it was when `image` was made with its plan."""
    func = func.with_attrs(may_spill=True) if image.may_spill else func
    return passes.run_plan(func, find_target(image.target), plan, on_stage)


def _refuse_prints(func: Func, target: str) -> None:
    """AMD's printf is a protocol between a library for the device and the host, not a function of
    the driver as on NVIDIA."""
    for o in walk(func.body):
        if isinstance(o, ops.Print):
            raise OnlySimulated(
                f"{target} has no function that prints, so T.print works in the simulator only",
                o.loc,
                f'print with tilec.simulate({func.name}, …, target="{target}") or on '
                'target="cpu", and leave T.print out here',
            )


def _refuse_asm(func: Func, target: Target) -> None:
    """LLVM is built without the assembler of AMD's targets here, and ends the process."""
    for o in walk(func.body):
        if isinstance(o, ops.Asm | ops.AsmEffect) and o.target == target.kind:
            raise OnlySimulated(
                f"tilec has no assembler for {target}, so T.asm works in the simulator only",
                o.loc,
                "write it in tilec's words, or T.call_llvm_intrin",
            )


def _first_good(
    func: Func,
    target: Target,
    keep_pass: passes.OnStage,
    ranked: Sequence[Plan],
    tried: list[Tried],
    attempts: Attempts,
    only_ranked: bool,
) -> Func:
    """`func` after the passes, under the first plan that the assembler finds no fault with, or
    else the one with the smallest; `attempts.kept` is its code where it has been made."""

    def on_plan(plan: Plan, error: ResourceError | None) -> None:
        tried.append((plan, None if error is None else error.message))

    try:
        check, refuse = attempts.check, attempts.refuse
        return fit.first_fit(func, target, keep_pass, ranked, on_plan, check, only_ranked, refuse)
    except (ResourceError, Settled) as error:
        least = attempts.least
        if least is None or least.plan is None:
            raise
        spills, warned = least.faults
        faulty = spills > FEW_SPILLED or (warned and least.plan.joined != SINGLE)
        if isinstance(error, ResourceError) and only_ranked and faulty:
            error.spilled = least.faults[0]
            raise
    attempts.kept = least
    tried.append((least.plan, None))
    return passes.run_plan(func, target, least.plan, keep_pass)


def _can_choose(signature: Signature, func: Func) -> bool:
    """Whether something but the author's own sizes makes a kernel as large as it is: a size left to
    tilec, a schedule that he asks for."""
    return leaves_sizes(signature) or any(func.body.every(ops.AnnotateSchedule))


def _spread(
    func: Func, target: Target, keep_pass: passes.OnStage, tried: list[Tried], error: ResourceError
) -> tuple[Func, Attempts] | None:
    """`func` after the passes with twice or four times the threads that its author asks for, with
    a warning in the words of `error`, and its code. None where it has no products, whose sums have
    to be in registers, where threads show in what it does, or where as many have no room either."""
    asked = func.attrs.get("threads")
    if asked is None or threads_show(func) or not any(func.body.every(ops.Gemm)):
        return None
    for threads in (n for n in (2 * asked, 4 * asked) if n <= MOST_SPREAD):
        attempts, found = Attempts(target), list[Tried]()
        try:
            wider = func.with_attrs(threads=threads)
            known = Candidate(wider, target).ranked(lambda *_: None) or ()  # sizes are constants
            best = [r.plan for r in known if r.plan is not None][:KEPT]
            final = _first_good(wider, target, keep_pass, best, found, attempts, only_ranked=False)
        except (CompileError, Ended):  # a layout that the author fixed for his number, too
            continue
        if attempts.kept is None or attempts.kept.faults[0] > FEW_SPILLED:
            continue
        plan = replace(found[-1][0], threads=threads)
        tried += [*found[:-1], (plan, None)]
        if error.loc is not None:
            message = f"{error.message}: {threads} threads compute, not {asked}"
            warn(PerformanceWarning, message, error.loc, f"ask for them: threads={threads}")
        return final, attempts
    return None


def _spilling(
    func: Func,
    target: Target,
    keep_pass: passes.OnStage,
    tried: list[Tried],
    attempts: Attempts,
    error: ResourceError,
) -> tuple[Func, Attempts]:
    """`func` after the passes under the plan that spills least, with a warning in the words of
    `error`, and its code: no size in it is left open, so that there is nothing to choose."""
    try:
        spilling = func.with_attrs(may_spill=True)
        final = _first_good(spilling, target, keep_pass, (), tried, attempts, only_ranked=False)
    except Ended:  # LLVM's register allocator for AMD has limits of its own
        raise error from None
    except ResourceError as other:  # no plan comes as far as code: it is not the registers alone
        raise (error if attempts.least else other) from None
    made = attempts.kept
    if error.loc is not None and (made is None or made.assembled.spilled_bytes != 0):
        message = f"{error.message}: what is too much is kept in memory, which is slow"
        warn(PerformanceWarning, message, error.loc, error.hint)
    return final, attempts


def _arguments(signature: Signature, key: SpecialisationKey, func: Func) -> list[Argument]:
    """The arguments of a call, with those that it allocates."""
    # An output's extents are written so that the sizes of the inputs give them.
    written = {p.name: p.shape or () for p in bind_constants(signature, key.values).parameters}
    found = {a.name: a for a in key.arguments}
    for a in key.arguments:
        if a.output:
            extents = zip(written[a.name], a.shape)
            shape = tuple(f if isinstance(f, int) or w is None else w for w, f in extents)
            found[a.name] = replace(a, shape=shape)
    for name, shape, dtype in func.attrs["outputs"]:
        found.setdefault(name, Argument(name, "tensor", dtype.name, shape, output=True))
    return [*found.values()]


def _image(
    signature: Signature,
    key: SpecialisationKey,
    func: Func,
    final: Func,
    assembled: Assembled,
    plan: Plan | None,
) -> Image:
    target, written, dense = assembled.target, stored(func), dict(final.attrs.get("dense", ()))
    multiples = dict(func.attrs.get("multiples", ()))
    binary, kind = assembled.binary, _FORMATS[target.kind]
    if binary is None:
        binary, kind = assembled.asm.encode(), "ptx"
    return Image(
        name=func.name,
        symbol=final.name,
        target=target.name,
        arguments=tuple(
            replace(
                a,
                written=a.name in written,
                dense=a.dense if a.name in dense else 0,
                row=a.row if a.name in written or _row(a) in multiples else 1,
            )
            for a in _arguments(signature, key, func)
        ),
        params=tuple(_abi_param(p) for p in final.params),
        grid="" if func.attrs.get("grid_from_launch") else grid_text(func),
        returned=tuple(signature.returns),
        resources=_resources(final, assembled, target),
        format=kind,
        binary=binary,
        persistent=bool(final.attrs.get("persistent")),
        may_alias=bool(func.attrs.get("may_alias")),
        wide=key.wide,
        cluster=cluster_of(final),
        exact_cluster=bool(func.attrs.get("cluster_dims")),
        split=split_of(final),
        parts=parts_of(final),
        packed=key.packed,
        may_spill=bool(final.attrs.get("may_spill")),
        asserts=tuple(str(text) for text in func.attrs.get("asserts", ())),
        assumed=assumed_text(final, {p.value.name for p in final.params}),
        debug=key.debug,
        cooperative=bool(final.attrs.get("cooperative")),
        own_grid=signature.tiles is not None,
        pdl="wait" in first_of_all(final, target),
        plan={} if plan is None else asdict(plan),
    )


def stored(func: Func) -> set[str]:
    """Names of the tensor arguments that a kernel in TILE form stores to."""
    tensors = {p.value: p.arg for p in func.params if p.role == "tensor"}
    return {tensors[v] for v in written_tensors(func.body) if v in tensors}


def _abi_param(p: Param) -> AbiParam:
    match p.value.type:
        case BufferType():
            return AbiParam(p.role, p.arg, p.dim, "pointer")
        case TensorMapType() as tensor_map:
            return AbiParam(p.role, p.arg, p.dim, "tensor_map", "", tensor_map)
        case ScalarType(dtype=dtype):
            return AbiParam(p.role, p.arg, p.dim, dtype.name, p.value.name)
    raise InternalError(f"a kernel cannot take a parameter of type {p.value.type}")


def _resources(final: Func, assembled: Assembled, target: Target) -> Resources:
    buffers = {
        o.result.name: o.type.stage_bytes * o.type.stages
        for o in walk(final.body)
        if isinstance(o, ops.Alloc) and o.type.space in ("shared", "barrier")
    }
    threads = int(final.attrs.get("launch_threads", final.attrs.get("threads") or 1))
    shared = int(final.attrs.get("shared_bytes", 0))
    return Resources(
        assembled.registers,
        assembled.spilled_bytes,
        shared,
        buffers,
        threads,
        occupancy(target, assembled.registers, shared, threads),
    )
