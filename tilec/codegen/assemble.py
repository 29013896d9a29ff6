"""LLVM text -> machine code: everything that happens after a code generator has spelled a kernel.

    cuda   LLVM text -> optimised -> PTX -> (ptxas, where found) cubin
    hip    LLVM text -> optimised -> relocatable object -> hsaco (`amd_link`)
    cpu    LLVM text -> optimised -> host object

What is only read (the optimised LLVM text, the assembly of hip and cpu) is made when it is asked
for, from the LLVM text again: LLVM's code generator changes the module it is given, so a module
serves one emission.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from tilec.codegen.amd_link import link
from tilec.codegen.amd_metadata import read_kernel_metadata
from tilec.codegen.foreign import parted, with_functions
from tilec.codegen.isolated import Ended, run_isolated
from tilec.codegen.ptxas import run_ptxas
from tilec.codegen.ptxas_faults import with_pairs_of_sums, without_faults
from tilec.codegen.selectable import check_intrinsics
from tilec.ir.errors import InternalError
from tilec.ir.instr import PTX_FOR
from tilec.support.tools import find_ptxas
from tilec.target import Target

_TRIPLES = {"cuda": "nvptx64-nvidia-cuda", "hip": "amdgcn-amd-amdhsa"}
_SYSTEM_CALLS = ("vprintf",)  # what the CUDA driver itself provides
_MIN_BLOCKS = re.compile(r'("nvvm\.minctasm"="|\.minnctapersm )\d+')
_SPEED_LEVELS = {"cuda": 2, "hip": 3, "cpu": 3}


@dataclass
class Assembled:
    """One kernel module as machine code, with what its assembler said.

    `binary`: cubin (None without ptxas: the driver compiles `asm`), hsaco, or host object.
    `registers`, `spilled_bytes` and `stack_bytes` are per thread, None where nothing reports them
    (cpu; cuda without ptxas). `advisories` are the assembler's warnings, C75xx lines and spills:
    empty for a good kernel. `seconds` maps each phase that ran to the time it took.
    """

    llvm_text: str
    target: Target
    binary: bytes | None = None
    registers: int | None = None
    spilled_bytes: int | None = None
    stack_bytes: int | None = None
    advisories: tuple[str, ...] = ()
    log: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @functools.cached_property
    def asm(self) -> str:
        """PTX, GCN assembly or host assembly."""
        return _made(self.llvm_text, self.target, _assembly)[0].decode()

    @functools.cached_property
    def llvm_opt(self) -> str:
        """The module as LLVM's optimiser leaves it."""
        return _made(self.llvm_text, self.target, _llvm_text)[0].decode()


def assemble(
    llvm_text: str, target: Target, meanwhile: Callable[[Assembled], None] = lambda made: None
) -> Assembled:
    """Compile the module `llvm_text` for `target`. `meanwhile` is called with what is there before
    ptxas has run.

    Raises InternalError, with the line it is about where there is one, if LLVM or ptxas refuses the
    text: every user error has been found before.
    """
    made = Assembled(llvm_text, target)
    with _timed(made.seconds, "check"):
        check_intrinsics(llvm_text, target)
    code, seconds = _made(llvm_text, target, _assembly if target.kind == "cuda" else _object)
    made.seconds.update(seconds)
    match target.kind:
        case "cuda":
            ptx = launch_control_first(without_faults(code.decode()))
            made.asm = with_functions(ptx, _texts(llvm_text, "ptx"))
            meanwhile(made)
            _finish_cuda(made, made.asm)
        case "hip":
            _finish_hip(made, code)
        case _:
            made.binary = code
    return made


_LAUNCH_CONTROL = re.compile(
    r"^\t// begin inline asm\n(\tgriddepcontrol\.\w+;\n)\t// end inline asm\n", re.M
)
_ENTRY = re.compile(
    r"^\.visible \.entry [^{]*\n\{\n(?:\t\.(?:reg|local|shared) .*\n)*"
    r"(?:\$L__func_begin\d+:\n)?(?:\t\.loc.*\n)?",
    re.M,
)


def launch_control_first(ptx: str) -> str:
    """`ptx` with what it says to other launches in front of all else. LLVM is given it there, too,
    but takes it that nothing writes a tensor which this kernel only reads, whatever is waited for:
    it might load from it earlier."""
    lines = _LAUNCH_CONTROL.findall(ptx)
    if not lines:
        return ptx
    ptx = _LAUNCH_CONTROL.sub("", ptx)
    entry = _ENTRY.search(ptx)
    if entry is None:
        raise InternalError("LLVM's PTX has no kernel")
    return ptx[: entry.end()] + "".join(sorted({*lines})) + ptx[entry.end() :]


_Emit = Callable[[Any, Any], bytes]  # of a target machine and an optimised module


def _assembly(machine: Any, module: Any) -> bytes:
    return str(machine.emit_assembly(module)).encode()


def _llvm_text(_: Any, module: Any) -> bytes:
    return str(module).encode()


def _object(machine: Any, module: Any) -> bytes:
    return bytes(machine.emit_object(module))


def _made(llvm_text: str, target: Target, emit: _Emit) -> tuple[bytes, dict[str, float]]:
    """What `emit` makes of the optimised module, and the seconds that it took. LLVM is left to
    itself only with tilec's own code for CUDA targets, which has few vectors: else it works in a
    child process; where that ends, code for the CPU is optimised by fewer passes."""

    def work(passes: str = "all") -> tuple[bytes, dict[str, float]]:
        seconds: dict[str, float] = {}
        module = _optimised(llvm_text, target, seconds, passes)
        with _timed(seconds, "emit"):
            return emit(_machine(_with_ptx(target, llvm_text)), module), seconds

    foreign = _texts(llvm_text, "llvm") or _texts(llvm_text, "asm")
    if target.kind == "cuda" and not foreign:
        return work()
    *most, least = ("all", "no loop vectoriser", "scalar") if target.kind == "cpu" else ("all",)

    def apart(passes: str) -> tuple[bytes, dict[str, float]]:
        what = f"LLVM cannot make code for {target}"
        made, seconds = pickle.loads(run_isolated(lambda: pickle.dumps(work(passes)), what))
        return made, seconds

    for passes in most:
        with contextlib.suppress(Ended):
            return apart(passes)
    return apart(least)


def with_min_blocks(made: Assembled, blocks: int) -> Assembled:
    """`made`, of a CUDA target, with as few registers as let a multiprocessor hold `blocks` blocks.
    ptxas alone looks at that number: LLVM's part is not done again."""
    return _respelled(made, lambda text: _MIN_BLOCKS.sub(rf"\g<1>{blocks}", text))


def with_instructions(made: Assembled, others: Mapping[str, str]) -> Assembled:
    """`made`, of a CUDA target, with `others` in the place of instructions that LLVM passes on as
    they are: its part is not done again."""
    wanted = re.compile("|".join(map(re.escape, others)))
    return _respelled(made, lambda text: wanted.sub(lambda found: others[found[0]], text))


def _respelled(made: Assembled, change: Callable[[str], str]) -> Assembled:
    more = Assembled(change(made.llvm_text), made.target, seconds=made.seconds)
    more.asm = change(made.asm)
    _finish_cuda(more, more.asm)
    return more


def _finish_cuda(made: Assembled, ptx: str) -> None:
    called = re.findall(r"\.extern \.func\s+(?:\([^)]*\)\s*)?([\w.$]+)", ptx)
    missing = [name for name in called if name not in _SYSTEM_CALLS]
    if missing:
        raise InternalError(f"the kernel calls {missing[0]}, which no library provides")
    ptxas = find_ptxas()
    if ptxas is None:
        return
    with _timed(made.seconds, "ptxas"):
        result = run_ptxas(ptxas, ptx, made.target.arch)
        if "C7514" in result.log and (paired := with_pairs_of_sums(ptx)) != ptx:
            again = run_ptxas(ptxas, paired, made.target.arch)
            if len(again.advisories) < len(result.advisories):
                made.asm, result = paired, again
    made.binary, made.log, made.advisories = result.cubin, result.log, result.advisories
    made.registers, made.spilled_bytes = result.registers, result.spilled_bytes
    made.stack_bytes = result.stack_bytes


def _finish_hip(made: Assembled, relocatable: bytes) -> None:
    with _timed(made.seconds, "link"):
        made.binary = link(relocatable)
        kernels = read_kernel_metadata(relocatable)
    made.registers = max((k[".vgpr_count"] for k in kernels), default=0)
    made.spilled_bytes = 4 * max((k[".vgpr_spill_count"] for k in kernels), default=0)
    made.stack_bytes = max((k[".private_segment_fixed_size"] for k in kernels), default=0)
    made.log = "\n".join(
        f"{key} {value}" for k in kernels for key, value in k.items() if key != ".args"
    )
    if made.spilled_bytes:
        made.advisories = (f"{made.spilled_bytes} bytes of registers spilled to scratch memory",)


# --- LLVM ---


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    # LLVM 22's straight-line strength reduction compares each address with all before it: half of
    # the time of a matrix product's code, a hundred times the rest of a kernel that gathers from
    # 2000 places (LLVM's pull request 217451). It is a pass of the code generator for GPUs alone.
    if llvm.llvm_version_info[0] == 22:
        llvm.set_option("tilec", "-opt-disable=slsr")


_machines = threading.local()


def _with_ptx(target: Target, llvm_text: str) -> Target:
    """`target` with a newer PTX, where an instruction of the text needs it."""
    newer = (ptx for word, ptx in PTX_FOR.items() if target.kind == "cuda" and word in llvm_text)
    return next((replace(target, llvm_features=ptx) for ptx in newer), target)


def _machine(target: Target) -> Any:
    """This thread's LLVM target machine for `target`: making one takes a millisecond, sharing one
    is unsafe."""
    cache: dict[str, Any] = _machines.__dict__
    key = f"{target.kind}:{target.arch}:{target.llvm_features}"
    if key not in cache:
        cache[key] = _make_machine(target)
    return cache[key]


def _make_machine(target: Target) -> Any:
    _initialize()
    match target.kind:
        case "cuda":
            maker = llvm.Target.from_triple(_TRIPLES["cuda"])
            return maker.create_target_machine(
                cpu=target.arch, features=target.llvm_features, opt=3
            )
        case "hip":
            maker = llvm.Target.from_triple(_TRIPLES["hip"])
            return maker.create_target_machine(
                cpu=target.arch, opt=3, reloc="pic", codemodel="default"
            )
        case "cpu":
            triple = llvm.get_process_triple()
            maker = llvm.Target.from_triple(triple)
            is_host = target.arch == "host"
            return maker.create_target_machine(
                cpu=llvm.get_host_cpu_name() if is_host else target.arch,
                features=llvm.get_host_cpu_features().flatten() if is_host else "",
                opt=3,
                reloc="pic",
                # Loaded into a process full of arrays, constants may lie farther from the code than
                # 32 bits reach. (On ARM llvmlite keeps the parts of an object together.)
                codemodel="large" if triple.startswith("x86_64") else "small",
            )
        case kind:
            raise InternalError(f"no code generator for targets of kind {kind!r}")


def _optimised(
    llvm_text: str, target: Target, seconds: dict[str, float], passes: str = "all"
) -> Any:
    """A fresh module, parsed, verified and optimised for `target`.

    The pass builder gets the target machine: without it AMDGPU's attributor does not run and a
    kernel takes 19 hidden arguments.
    """
    machine = _machine(target)
    with _timed(seconds, "parse"):
        module = _linked(llvm_text, machine)
    with _timed(seconds, "verify"):
        try:
            module.verify()
        except RuntimeError as e:
            raise InternalError(f"LLVM's verifier refuses the module: {e}".rstrip()) from e
    with _timed(seconds, "optimise"):
        # A builder serves once: what a run has left in it points to what has gone.
        builder = llvm.create_pass_builder(machine, _tuning(target, passes))
        pipeline = _scalar_passes() if passes == "scalar" else builder.getModulePassManager()
        pipeline.run(module, builder)
        # llvmlite 0.50 never disposes of a pipeline: `close` finds the method of the wrong base.
        NewPassManager._dispose(pipeline)
        pipeline.detach()
    return module


def _scalar_passes() -> Any:
    """The least that makes tolerable code."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_aggressive_dce_pass()
    return passes


def _tuning(target: Target, passes: str) -> Any:
    """Loops of GPU kernels that are to be vectors are so before LLVM sees them. On the CPU its loop
    vectoriser is for the serial ones: where its two cost models disagree about one, llvmlite's
    build of LLVM ends the process."""
    tuning = llvm.create_pipeline_tuning_options(speed_level=_SPEED_LEVELS[target.kind])
    tuning.slp_vectorization = tuning.loop_unrolling = target.kind == "cpu"
    tuning.loop_vectorization = target.kind == "cpu" and passes == "all"
    tuning.loop_interleaving = tuning.loop_vectorization
    return tuning


def _texts(llvm_text: str, language: str) -> list[str]:
    """The sources behind a module that are written in a language."""
    return [text for kind, text in parted(llvm_text)[1] if kind == language]


def _linked(llvm_text: str, machine: Any) -> Any:
    """The module and the functions of the user's that it calls, which become part of it. It has a
    context of its own, so that nothing of it outlives it."""
    context = llvm.create_context()
    module = _parse(parted(llvm_text)[0], context)
    others = [_parse(text, context) for text in _texts(llvm_text, "llvm")]
    for m in (module, *others):
        m.triple = machine.triple
        m.data_layout = str(machine.target_data)
    given: list[str] = []
    called: set[str] = set()
    for other in others:
        given += [f.name for f in other.functions if not f.is_declaration]
        called.update(f.name for f in other.functions if f.is_declaration)
        try:
            other.verify()
            module.link_in(other)
        except RuntimeError as e:
            raise InternalError(f"LLVM cannot link the functions: {e}".rstrip()) from e
    for name in sorted(called - {*given}):
        if not name.startswith("llvm."):
            raise InternalError(f"the functions call {name}, which none of them defines")
    for name in given:
        function = module.get_function(name)
        function.linkage = "internal"
        if not any(b"noinline" in attributes for attributes in function.attributes):
            function.add_function_attribute("alwaysinline")
    return module


def _parse(llvm_text: str, context: Any) -> Any:
    try:
        return llvm.parse_assembly(llvm_text, context=context)
    except RuntimeError as e:
        raise InternalError(f"LLVM cannot parse the module: {_with_line(str(e), llvm_text)}") from e


def _with_line(message: str, llvm_text: str) -> str:
    """LLVM's message with the line of text it is about (which LLVM cuts or leaves out)."""
    found = re.search(r"<string>:(\d+):(\d+): (.*)", message)
    if not found:
        return message
    number = int(found[1])
    lines = llvm_text.splitlines()
    line = lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""
    return f"{found[3]} (line {number})\n    {line}"


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start
