"""`tilec.simulate`: a call of a kernel, run for every thread by the simulator instead of a GPU.

The call is resolved as a launch on the target would be (arguments, facts, choices, plan); what runs
are the records of that variant (`jit.simulated`), on the CPU arrays of the call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tilec.ir.caller import for_users
from tilec.ir.clusters import launched_cluster
from tilec.ir.core import Func
from tilec.ir.errors import LaunchError, TargetError, did_you_mean, shown
from tilec.jit.attempts import occupancy
from tilec.jit.compiled import CompiledKernel
from tilec.jit.packing import packed_copy
from tilec.jit.simulated import Records, records_of, variant_records
from tilec.kernel import Kernel, Planned, kernel_in
from tilec.passes.utils.registers import at_launch
from tilec.runtime.arguments import as_index
from tilec.runtime.block import pack_value
from tilec.runtime.devices import resolve_target
from tilec.runtime.driver import DriverError, argument_values, launched_grid, sums_of
from tilec.runtime.image import OWN_MEMORY, Image
from tilec.runtime.tensor_map import map_arguments
from tilec.runtime.tensors import Tensor
from tilec.runtime.workspace import workspace_params
from tilec.sim.block import Launch
from tilec.sim.launch import DEFAULT_STEPS, Wishes, run
from tilec.sim.numbers import KINDS
from tilec.sim.report import Report
from tilec.sim.tensors import GlobalTensor, TensorMap
from tilec.sim.trace import OnChange
from tilec.support.tools import find_ptxas
from tilec.target import PROPOSED, TARGETS, Target, find_target, meant_target

OPTIONS = ("grid", "target", "blocks", "checks", "schedules", "trace", "on_change", "seed", "steps",
           "check_outputs", "resident_blocks", "optimised")  # fmt: skip
GPU_TARGETS = tuple(t.name for t in TARGETS.values() if t.kind != "cpu")


@for_users
def simulate(
    kernel: Kernel,
    *args: Any,
    grid: Any = None,
    target: str = "cuda:sm_90a",
    blocks: int | Sequence[int | tuple[int, ...]] | None = None,
    checks: bool = True,
    schedules: int = 1,
    trace: str | Sequence[str] | None = None,
    on_change: OnChange | None = None,
    seed: int = 0,
    steps: int = DEFAULT_STEPS,
    check_outputs: bool = False,
    resident_blocks: int | None = None,
    optimised: bool = False,
    **meta: Any,
) -> Report:
    """Run `kernel(*args, **meta)`, or `kernel[grid](…)`, as the code that is compiled for `target`,
    thread by thread, on this CPU; the arrays are filled in place.

    `args`: NumPy arrays, CPU tensors of torch, objects with `__dlpack__`. `blocks`: which of the
    launched blocks to run: the first n, or a list of their numbers (x fastest) or coordinates.
    `checks`: look for faults (False: numbers only, faster). `schedules`: run that often, with the
    warps in another order from the second time on, which `seed` chooses. `trace`: elements to
    follow, e.g. "acc[0, :4]" (or a list). `on_change`: called as `on_change(trace, change)` after
    each line that has written them; `breakpoint()` in it opens pdb. `steps`: what a block may do
    before it counts as running for ever. `check_outputs`: report elements of written arrays that no
    block has written. `resident_blocks`: how many blocks a persistent kernel is launched with,
    instead of what the target's chip would hold. `optimised`: run what LLVM's optimiser makes of
    the code, instead of what it is given: whether it relies on something that does not hold. A
    parameter of the kernel that is called like one of these is given by position.

    A kernel with several T.Kernel runs one after the other, up to the first with findings, whose
    report it is, else the last one's.

    Raises TargetError, LaunchError and CompileError, as a launch does; Ctrl-C gives the report of
    what has been run.
    """
    kernel = kernel_in(kernel)
    machine = _checked(kernel, target, meta)
    flags = ("checks", checks), ("check_outputs", check_outputs), ("optimised", optimised)
    for name, value in flags:
        if not isinstance(value, bool | np.bool_):
            hint = f"write {name}=False or {name}=True"
            raise LaunchError(f"{name}: expected a bool, got {shown(value)}", hint=hint)
    wishes = Wishes(
        blocks=blocks,
        checks=checks,
        schedules=_whole("schedules", schedules),
        trace=_traces(trace),
        on_change=_callback(on_change, trace),
        seed=_whole("seed", seed, 0),
        steps=_whole("steps", steps),
        check_outputs=check_outputs,
    )
    resident = None if resident_blocks is None else _whole("resident_blocks", resident_blocks)
    if optimised and wishes.trace:
        message = "trace follows a kernel's buffers, and LLVM's optimiser has its own"
        raise LaunchError(message, hint="leave trace or optimised out")

    def one(part: Kernel, args: Sequence[Any], meta: Mapping[str, Any]) -> Report:
        planned = part.plan_launch(machine.name, grid, args, meta)
        records = records_for(part, planned)
        chosen = records.optimised if optimised else records
        return _run(planned, chosen, machine, wishes, resident)

    if not kernel.is_sequence:
        return one(kernel, args, meta)
    first, *others = kernel.parts.kernels
    report = one(first, args, meta)
    given, outputs = kernel.parts.given(args, meta), report.outputs
    for part in others:
        if report.ok:
            later = one(part, (), {**given, **outputs})
            report = report if 0 in later.grid else later
    report.outputs = outputs
    return report


@for_users
def simulate_changed(
    change: Callable[[Func], Func],
    kernel: Kernel,
    *args: Any,
    grid: Any = None,
    target: str = "cuda:sm_90a",
    wishes: Wishes | None = None,
    **meta: Any,
) -> Report:
    """`simulate` of a kernel whose LOWERED function has gone through `change`: what would happen if
    the compiler had left out a barrier, say. For tests of the simulator, and for learning."""
    machine = _checked(kernel, target, meta)
    planned = kernel.plan_launch(machine.name, grid, args, meta)
    changed = records_of(change(records_for(kernel, planned).func), machine.name)
    return _run(planned, changed, machine, wishes or Wishes())


def records_for(kernel: Kernel, planned: Planned) -> Records:
    """The records of the variant that a planned launch runs, made when it is first asked for: from
    what its compilation has left, or by the passes where it came from the disk cache."""
    variant = planned.variant
    found = _records.get(variant)
    if found is None:
        plan = variant.plan
        assert plan is not None  # GPUs have plans
        if variant.lowered is not None:
            found = records_of(variant.lowered, variant.target, variant.emitted)
        else:
            found = variant_records(kernel.signature, planned.key, variant.image, plan)
        _records[variant] = found
    return found


_records: WeakKeyDictionary[CompiledKernel, Records] = WeakKeyDictionary()


def _run(
    planned: Planned, records: Records, target: Target, wishes: Wishes, resident: int | None = None
) -> Report:
    report = run(launch_of(planned, records, resident), wishes)
    made = planned.outputs  # in the order of the return, then the others
    names = dict.fromkeys((*planned.variant.image.returned, *made))
    report.outputs = {name: made[name] for name in names if name in made}
    if records.is_optimised:
        report.notes += ("as LLVM's optimiser leaves it",)
    if target.kind == "cuda" and find_ptxas() is None:
        report.notes += (
            "no ptxas here: with one, a launch might have kept another plan, for its registers",
        )
    if planned.variant.image.persistent:
        launched = "x".join(map(str, report.grid))
        report.notes += (f"a persistent kernel: {launched} blocks walk over the grid",)
    return report


def _checked(kernel: object, target: object, meta: Mapping[str, Any]) -> Target:
    """The target, where kernel and keywords are what they should be."""
    if not isinstance(kernel, Kernel):
        message = f"simulate takes a kernel, got a {type(kernel).__name__}"
        raise LaunchError(message, hint=_instead(kernel))
    _check_keywords(kernel, meta)
    return simulated_target(target)


def _instead(given: object) -> str:
    if isinstance(given, CompiledKernel):
        return (
            f"pass {given.name} itself, which is compiled for target=, not {given.name}.compile(…)"
        )
    if callable(given):
        return "decorate the function with @tilec.kernel"
    return "simulate(kernel, A, B), not simulate(kernel(A, B))"


def simulated_target(name: object) -> Target:
    """The GPU called `name` ("cuda" and "hip": the one found). Raises TargetError."""
    known, hint = ", ".join(GPU_TARGETS), 'write target="cuda:sm_90a"'
    if not isinstance(name, str):
        raise TargetError(f"target is a {type(name).__name__}; expected one of {known}", hint=hint)
    if name == "cpu":
        raise TargetError(
            f"the simulator runs the code of GPUs: {known}; on the cpu target a kernel runs itself,"
            " by calling it with these arrays",
            hint=hint,
        )
    try:
        return find_target(resolve_target(name))
    except DriverError:
        message = f"target {name!r} means the device found, and there is none; name one of {known}"
        raise TargetError(message, hint=hint) from None
    except TargetError:
        meant = meant_target(name) or name
        meant = PROPOSED.get(meant, meant)
        first = [t for t in GPU_TARGETS if t.startswith(meant)] if meant else []
        near = f"; did you mean {first[-1]!r}?" if first else did_you_mean(name, GPU_TARGETS)
        message = f"target {shown(name)} is unknown{near} (the simulator has {known})"
        raise TargetError(message, hint=hint) from None


def _check_keywords(kernel: Kernel, meta: Mapping[str, Any]) -> None:
    names = [p.name for p in kernel.parameters]
    for name in meta:
        near = did_you_mean(name, OPTIONS)
        if name not in names and name != "threads" and near:
            message = f"simulate has no option {name!r}{near}, and {kernel.name} no such parameter"
            raise LaunchError(message, hint=f"options are {', '.join(OPTIONS)}")


def _whole(name: str, value: object, least: int = 1) -> int:
    whole = as_index(value)
    if whole is None or whole < least:
        message = f"{name}: expected an int of at least {least}, got {shown(value)}"
        raise LaunchError(message, hint=f"leave {name} out, or write {name}={max(least, 2)}")
    return whole


def _traces(trace: object) -> tuple[str, ...]:
    """What to follow, as a tuple of texts. Raises LaunchError."""
    given = (trace,) if isinstance(trace, str) else () if trace is None else trace
    if not isinstance(given, Sequence) or not all(isinstance(t, str) for t in given):
        message = f"trace: expected a text or a list of texts, got {shown(trace)}"
        raise LaunchError(message, hint='write trace="acc[0, :4]", or trace=["acc[0, :4]", "C[1]"]')
    return tuple(given)


def _callback(on_change: object, trace: object) -> OnChange | None:
    """Raises LaunchError."""
    if on_change is None:
        return None
    if not callable(on_change):
        message = f"on_change: expected a function of a trace and a change, got {shown(on_change)}"
        hint = "write on_change=lambda trace, change: print(change.values)"
        raise LaunchError(message, hint=hint)
    if not trace:
        message = "on_change is called for what trace= follows, which is missing"
        raise LaunchError(message, hint='add trace="acc[0, :4]", say')
    return on_change


# --- from a call to what the simulator takes ---


def launch_of(planned: Planned, records: Records, resident: int | None = None) -> Launch:
    """The launch of `planned` with these records, which may be others than the compiler's own (a
    mutated program). `resident`: blocks that run at once."""
    image = planned.variant.image
    copies = {n: _packed(planned.call.tensors[n]) for n in image.packed}
    call = replace(planned.call, tensors={**planned.call.tensors, **copies})
    target = find_target(image.target)
    written = {a.name for a in image.arguments if a.written or a.output}
    outputs = {a.name for a in image.arguments if a.output}
    order = [p.arg for p in image.params if p.role == "tensor"]
    tensors = [
        _global(n, call.tensors[n], n in written, n in outputs, i) for i, n in enumerate(order)
    ]
    standin = _Standin(image, tensors, resident or _resident(image, target))
    launched = launched_grid(standin, planned.grid) if 0 not in planned.grid else (0, 0, 0)
    for _, p in workspace_params(image):
        size = p.dim * sums_of(image, launched)
        tensors.append(_workspace(p.arg, size, p.role == "counters", len(tensors)))
    values = argument_values(standin, call.tensors, call.scalars, planned.grid)
    kinds = [kind for kind, _, _ in records.function.params]
    parameters = [
        _parameter(value, p.type, image.target, kind)
        for value, p, kind in zip(values, image.params, kinds)
    ]
    addresses = {t.name: np.int64(t.address) for t in tensors}
    for i, p in enumerate(image.params):
        if p.role in ("tensor", *OWN_MEMORY):
            parameters[i] = addresses[p.arg]
    return Launch(
        image.name,
        records.func,
        records.function,
        records.strings,
        records.program,
        records.registers,
        target,
        planned.variant.plan.describe() if planned.variant.plan else "",
        tuple(parameters),
        tuple(tensors),
        tuple(standin.maps),
        launched,
        launched_cluster(records.func),
        image.resources.registers or at_launch(image.resources.threads, target),
    )


def _packed(t: Tensor) -> Tensor:
    """The copy that a launch makes of a packed operand."""
    at = packed_copy(t, 0)
    memory = np.zeros(t.shape[0] * at.strides[0] + 16, f"V{t.itemsize}")
    first = -memory.ctypes.data % 16 // t.itemsize
    copy = memory[first : first + t.shape[0] * at.strides[0]].reshape(*t.shape[:-1], -1)
    low, high = t.span()
    held = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    steps = [s * t.itemsize for s in t.strides]
    source = held[t.pointer - low :].view(memory.dtype)
    copy[..., : t.shape[-1]] = np.lib.stride_tricks.as_strided(source, t.shape, steps)
    return replace(at, pointer=copy.ctypes.data, owner=memory)


def _workspace(name: str, size: int, counters: bool, number: int) -> GlobalTensor:
    """Memory that the launch brings along: zeros for counters, else what nobody has written."""
    content = np.full(size, 0 if counters else 0xFF, np.uint8)
    words = (size // 4,)
    return GlobalTensor(
        name, content, 0, words, (1,), "int32", 4, True, not counters, number, counters=counters
    )


class _Standin:
    """A loaded kernel as `runtime.driver` asks for one, without a device: tensor maps are numbers,
    in the order in which they are asked for."""

    def __init__(self, image: Image, tensors: Sequence[GlobalTensor], resident: int) -> None:
        self.image, self._resident = image, resident
        self._tensors = {t.name: t for t in tensors}
        self.maps: list[TensorMap] = []

    def tensor_map(self, param: int, tensor: Tensor) -> bytes:
        kind = self.image.params[param].tensor_map
        assert kind is not None
        m = map_arguments(kind, tensor)
        held = self._tensors[kind.tensor]
        self.maps.append(
            TensorMap(held, held.address, m.sizes, m.strides, m.box, kind.swizzle, kind.dtype)
        )
        return (len(self.maps) - 1).to_bytes(8, "little")

    def resident_blocks(self) -> int:
        return self._resident


def _resident(image: Image, target: Target) -> int:
    """Blocks that the target's chip holds at once."""
    r = image.resources
    each = occupancy(target, r.registers or 1, r.shared_bytes, r.threads) or 1
    return max(1, each) * target.multiprocessors


def _parameter(value: Any, dtype: str, target: str, kind: str) -> Any:
    """A launch's value as the records hold it: the bits of its dtype in the LLVM type `kind`."""
    if isinstance(value, bytes):
        return np.int64(int.from_bytes(value, "little"))
    if dtype == "pointer":
        return np.int64(value)
    return np.frombuffer(pack_value(value, dtype, target), KINDS[kind])[0]


def _global(name: str, t: Tensor, written: bool, output: bool, number: int) -> GlobalTensor:
    """An array as the simulator's global memory: its bytes, where they are."""
    low, high = t.span()
    size = high - low
    content = (ctypes.c_uint8 * size).from_address(low) if size else (ctypes.c_uint8 * 1)()
    return GlobalTensor(
        name,
        np.ctypeslib.as_array(content)[:size],
        t.pointer - low,
        t.shape,
        t.strides,
        t.dtype,
        t.itemsize,
        written,
        output,
        number,
        t.pointer % 16,
        t.owner,
    )
