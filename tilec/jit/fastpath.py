"""The way of a launch that has been made before: one Python function, written for one kernel's
signature.

Everything a launch depends on goes into two tuples: `values`, which only the argument block holds
(addresses, scalars), and `facts`, all the rest (shapes, strides, dtypes, devices, constants,
grid, stream). Dictionaries lead from facts and values to a launch made ready, which takes no
arguments: for three torch tensors about 1 us of Python. Where only the values are new, the
dictionary itself makes the launch from them (`tilec.jit.recipe.Launches`). Whatever is not found,
or goes wrong on the way (another kind of array, a missing argument), goes to
`Launchable.launch_anew`, which checks all of it, compiles what is missing and fills the
dictionaries. So does a call that finds another value behind a name that the kernel takes from
outside.

The text for `def add(A, B, n: T.int32, BN: T.constexpr = 128)`, called with torch tensors, is

    def call(kernel, A=REQUIRED, B=REQUIRED, n_=REQUIRED, BN_=REQUIRED, /, *extra, n=REQUIRED,
    BN=REQUIRED, stream=None, **unknown):
        values = facts = open = ready = None
        if unknown:  # arrays are mostly given by position
            if A is REQUIRED:
                A = unknown.pop("A", REQUIRED)
            …
        if BN is REQUIRED:
            BN = default_BN if BN_ is REQUIRED else BN_
        elif BN_ is not REQUIRED:
            unknown["BN"] = BN  # given twice
        …
        try:
            if T is not value0_: raise LookupError
            device = A.get_device()
            if stream is None:
                stream = stream_of(device) if device >= 0 else 0
            facts = (device, stream, A.shape, A.is_contiguous() or A.stride(), A.dtype, …,
                     B.get_device(), BN if BN.__class__ is int else exact(BN))
            values = (A.data_ptr(), B.data_ptr(), n)
            ready = memo[facts][values]
        except Exception:
            pass
        if ready is None or extra or unknown or ready():
            try:
                return anew(kernel, None, {"A": A, "B": B, "n": n, "BN": BN}, extra, unknown, …)
            except Exception as error:
                end(error)  # at who called
                raise

Arrays that the call allocates are made from `facts` too; `anew` launches with these very arrays, so
that what it remembers is found under their addresses.
"""

from __future__ import annotations

import functools
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilec.builtins.choices import Auto
from tilec.ir.caller import LAUNCHER, end_at_caller, opaque
from tilec.jit.captured import Reads
from tilec.jit.fingerprint import exact
from tilec.runtime.arguments import REQUIRED, Parameter

LAUNCH_KEYWORDS = ("stream", "threads")
ALIGNMENTS = 15  # the bits of an address that a variant's facts depend on


@dataclass(frozen=True, slots=True)
class ArrayReads:
    """Expressions that read one kind of array, called `x`: its address, what else tells it apart,
    and the ordinal of its device (-1: none). `parts`: what else tells arrays apart that may be
    parts of complex numbers."""

    address: str
    facts: tuple[str, ...]
    device: str
    parts: tuple[str, ...] = ()

    def of(self, name: str, expression: str) -> str:
        return expression.replace("x.", f"{name}.")


_PARTS = (None, "float16", "float32", "tfloat32", "float64")
ARRAY_KINDS = {
    "torch": ArrayReads(
        "x.data_ptr()",
        # Of a contiguous array the strides follow from the shape.
        ("x.shape", "x.is_contiguous() or x.stride()", "x.dtype", "x.get_device()"),
        "x.get_device()",
        ("x._is_view() and x.is_neg()",),  # the imaginary parts of conjugates
    ),
    "numpy": ArrayReads(
        "x.__array_interface__['data'][0]",
        ("x.shape", "x.strides", "x.dtype", "x.flags.writeable"),
        "-1",
    ),
}


def can_be_written(parameters: Sequence[Parameter]) -> bool:
    """Whether no parameter is called like a name of the generated function's own."""
    own = ("REQUIRED", "Exception", "LookupError", "int")
    return not any(
        p.name in own or p.name.endswith("_") or "default_" in p.name for p in parameters
    )


def write_launcher(
    parameters: Sequence[Parameter],
    outputs: Sequence[str],
    returns: Sequence[str],
    with_grid: bool,
    arrays: str,
    changed: str,
    sized: Collection[str] = (),
) -> str:
    """The text of `call` for these parameters; `outputs` names the arrays it allocates, `returns`
    the arrays it returns, `arrays` the kind of array it is for, `changed` is an expression that
    says whether the kernel itself is another one by now ("": it cannot be). `sized`: the integer
    arguments that extents of `outputs` follow from."""
    reads = ARRAY_KINDS[arrays]
    names = [p.name for p in parameters]
    keywords = [k for k in LAUNCH_KEYWORDS if k not in names]
    # What is left open, and with it the grid and the outputs' extents, follows from all the rest.
    opened = is_opened(parameters, with_grid, outputs)
    device = device_text(parameters, reads)
    lines = [
        head_of(parameters, keywords, with_grid),
        "    values_ = facts_ = open_ = ready_ = None",
        *given_by_name(parameters),
        *(["    asked_ = grid_"] if with_grid and opened else []),
        "    try:",
        *([f"        if {changed}:", "            raise LookupError"] if changed else []),
    ]
    meta = ", ".join(f"{p.name!r}: {p.name}" for p in parameters if p.kind == "constexpr")
    spread = [
        "        if grid_.__class__ is not tuple:",
        f"            grid_ = spread_(grid_, {{{meta}{', **chosen_[open_]' if opened else ''}}})",
    ]
    if with_grid and not opened:
        lines += spread
    lines += stream_text(device, keywords)
    facts = ["device_", "stream_"]
    facts += ["grid_"] if with_grid and not opened else []
    told, scalars = facts_and_scalars(parameters, reads, sized)
    facts += told
    given = ", ".join(f"{name!r}: {name}" for name in names)
    options = ", ".join(f"{k!r}: {k}" for k in keywords)
    grid = ("asked_" if opened else "grid_") if with_grid else "None"
    if opened:
        facts += alignment_texts(parameters, reads)
        lines += [f"        open_ = ({', '.join([*facts, *scalars])},)"]
        lines += spread if with_grid else []
        facts = ["grid_", "open_"] if with_grid else ["open_"]
    lines.append(f"        facts_ = ({', '.join(facts)},)")
    if outputs:
        lines.append(f"        make_ = plans_[{'open_' if opened else 'facts_'}]")
        lines += [f"        {name} = make_[{i}]()" for i, name in enumerate(outputs)]
    addresses = address_texts(parameters, reads)
    addresses += [reads.of(name, reads.address) for name in outputs]
    made = f"values_ and ({', '.join(outputs)},)" if outputs else "None"
    lines += [
        f"        values_ = ({', '.join([*addresses, *scalars])},)",
        "        ready_ = memo_[facts_][values_]",
        "    except Exception:",
        "        pass",
        "    if ready_ is None or extra_ or unknown_ or ready_():",
        "        try:",
        f"            return anew_(kernel_, {grid}, {{{given}}},"
        f" extra_, {{**unknown_, {options}}}, (values_, facts_, open_, {made}))",
        "        except Exception as error_:",
        "            end_(error_)",
        "            raise",
    ]
    if returns:
        lines.append(f"    return {', '.join(returns)}")
    return "\n".join(lines) + "\n"


def is_opened(parameters: Sequence[Parameter], with_grid: bool, outputs: Sequence[str]) -> bool:
    """Whether the facts of a launch do not tell its grid, or its outputs' extents: they follow from
    what is left open, and that from all the rest."""
    return any(isinstance(p.default, Auto) for p in parameters) and (with_grid or bool(outputs))


def device_text(parameters: Sequence[Parameter], reads: ArrayReads) -> str:
    """The device of an array that is there, if one always is."""
    tensors = sorted((p for p in parameters if p.kind == "tensor"), key=_is_optional)
    return reads.of(tensors[0].name, reads.device)


def address_texts(parameters: Sequence[Parameter], reads: ArrayReads) -> list[str]:
    """Expressions for the addresses, as entries of a tuple: a tensor that is left out has none."""
    found = ((p, reads.of(p.name, reads.address)) for p in parameters if p.kind == "tensor")
    return [f"*(() if {p.name} is None else ({a},))" if _is_optional(p) else a for p, a in found]


def alignment_texts(parameters: Sequence[Parameter], reads: ArrayReads) -> list[str]:
    """Expressions for what a variant's facts depend on of the addresses."""
    text = f"{reads.address} & {ALIGNMENTS}"
    return [_if_given(p, reads.of(p.name, text)) for p in parameters if p.kind == "tensor"]


def _is_optional(p: Parameter) -> bool:
    return p.kind == "tensor" and p.default is None


def _if_given(p: Parameter, text: str) -> str:
    return f"None if {p.name} is None else {text}" if _is_optional(p) else text


def stream_text(device: str, keywords: Sequence[str]) -> list[str]:
    """Statements that find the device, given by an expression, and the stream."""
    return [
        f"        device_ = {device}",
        f"        stream_ = {'stream' if 'stream' in keywords else 'None'}",
        "        if stream_ is None:",
        "            stream_ = stream_of_(device_) if device_ >= 0 else 0",
    ]


def facts_and_scalars(
    parameters: Sequence[Parameter], reads: ArrayReads, sized: Collection[str]
) -> tuple[list[str], list[str]]:
    """Expressions for what a launch depends on beside addresses, device, stream and grid; those for
    its scalars."""
    names = [p.name for p in parameters]
    device = device_text(parameters, reads)
    facts, scalars = [] if "threads" in names else ["threads"], list[str]()
    for p in parameters:
        match p.kind:
            case "tensor":
                told = (*reads.facts, *(reads.parts if p.dtype in _PARTS else ()))
                texts = (reads.of(p.name, e) for e in told)
                facts += [_if_given(p, e) for e in texts if e != device]
            case "scalar":
                scalars += [p.name, *told_apart(p)]
                facts += [p.name] if p.name in sized else []
            case "constexpr":  # 2 == 2.0 == True, but they are different constants
                facts.append(f"{p.name} if {p.name}.__class__ is int else exact_({p.name})")
    return facts, scalars


def head_of(parameters: Sequence[Parameter], keywords: Sequence[str], with_grid: bool) -> str:
    """The line that says what `call` takes: all parameters by position, and by name all but the
    arrays, which are found among the unknown keywords."""
    head = ["kernel_", *(["grid_"] if with_grid else [])]
    for p in parameters:
        name = p.name if p.kind == "tensor" else f"{p.name}__"
        head.append(f"{name}={None if _is_optional(p) else 'REQUIRED'}")
    head += ["/", "*extra_"]
    head += [f"{p.name}=REQUIRED" for p in parameters if p.kind != "tensor"]
    head += [f"{k}=None" for k in keywords]
    return f"def call({', '.join(head)}, **unknown_):"


def given_by_name(parameters: Sequence[Parameter]) -> list[str]:
    """Statements that find what is given by name, or not at all. What is given by position too
    stays among the unknown keywords."""
    lines = ["    if unknown_:"]
    for p in parameters:
        if p.kind == "tensor":
            missing = None if _is_optional(p) else "REQUIRED"
            lines.append(f"        if {p.name} is {missing}:")
            lines.append(f"            {p.name} = unknown_.pop({p.name!r}, {missing})")
    for p in parameters:
        if p.kind == "tensor":
            continue
        default = "REQUIRED" if p.default is REQUIRED else f"default_{p.name}"
        lines += [
            f"    if {p.name} is REQUIRED:",
            f"        {p.name} = {default} if {p.name}__ is REQUIRED else {p.name}__",
            f"    elif {p.name}__ is not REQUIRED:",
            f"        unknown_[{p.name!r}] = {p.name}",
        ]
    return lines


def told_apart(p: Parameter) -> list[str]:
    """What stands behind a scalar in the values of a launch, because equality leaves it open: 0.0
    == -0.0, but they are different bits."""
    if p.dtype is None or p.dtype.startswith(("float", "bfloat")):
        return [f"sign_({p.name})"]
    return []


def stream_reader() -> Callable[[int], int]:
    """The fastest way to torch's current stream on a device; 0 where torch has no GPU support."""
    torch = sys.modules.get("torch")
    found = getattr(torch._C, "_cuda_getCurrentRawStream", None) if torch is not None else None
    return found or (lambda device: 0)


def make_launcher(
    kernel: str,
    parameters: Sequence[Parameter],
    outputs: Sequence[str],
    returns: Sequence[str],
    with_grid: bool,
    arrays: str,
    module: dict[str, Any],
    reads: Reads,
    names: Mapping[str, Any],
    sized: Collection[str] = (),
) -> Callable[..., Any]:
    """`call` as a function, see `write_launcher`. `names` gives its `memo_`, `plans_`, `chosen_`,
    `anew_` and `spread_`; `reads` what the kernel took from outside.

    Nothing is faster than a function's own globals and closure, so its globals are those of the
    kernel's `module`, and its closure holds the kernel's own cells and all other names.
    """
    test = reads.test(
        module, {"kernel_", *LAUNCH_KEYWORDS, *outputs, *(p.name for p in parameters)}
    )
    given = {**asked_for(parameters), **names, **test.values, **test.cells}
    text = write_launcher(parameters, outputs, returns, with_grid, arrays, test.text, sized)
    called = f"{kernel}{' with grid' if with_grid else ''}"
    return function_of(called, text, given, test.cells, module)


def asked_for(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """What generated functions ask for by names of their own."""
    return {
        "REQUIRED": REQUIRED,
        "Exception": Exception,
        "LookupError": LookupError,
        "int": int,
        "exact_": exact,
        "end_": end_at_caller,
        "sign_": functools.partial(math.copysign, 1.0),
        "stream_of_": stream_reader(),
        **{f"default_{p.name}": p.default for p in parameters},
    }


def function_of(
    called: str,
    text: str,
    given: Mapping[str, Any],
    cells: Mapping[str, types.CellType],
    module: dict[str, Any],
) -> Callable[..., Any]:
    """`call` with this text, which asks for the names `given`, of which some are in `cells` of the
    kernel's own, and then for the globals of `module`. `called` names it in tracebacks."""
    text = f"def make_({', '.join(given)}):\n{textwrap.indent(text, '    ')}    return call\n"
    file = f"{LAUNCHER} of {called}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {}
    exec(compile(text, file, "exec"), space)
    made = space["make_"](**given)
    own = zip(made.__code__.co_freevars, made.__closure__)
    closure = tuple(cells.get(name, cell) for name, cell in own)
    call = types.FunctionType(made.__code__, module, "call", made.__defaults__, closure)
    call.__kwdefaults__ = made.__kwdefaults__
    return opaque(call)


def renew_launcher(call: Any, values: Mapping[str, Any]) -> None:
    """Let `call`, made by `make_launcher`, compare with other values."""
    for name, cell in zip(call.__code__.co_freevars, call.__closure__):
        if name in values:
            cell.cell_contents = values[name]
