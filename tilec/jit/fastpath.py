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
        if unknown:  # arrays are mostly given by position
            if A is REQUIRED:
                A = unknown.pop("A", REQUIRED)
            …
        if BN is REQUIRED:
            BN = default_BN if BN_ is REQUIRED else BN_
        elif BN_ is not REQUIRED:
            unknown["BN"] = BN  # given twice
        …
        values = facts = open = ready = None
        try:
            if T is not value0_: raise LookupError
            device = A.get_device()
            if stream is None:
                stream = stream_of(device) if device >= 0 else 0
            facts = (device, stream, A.shape, A.is_contiguous() or A.stride(), A.dtype, …,
                     B.get_device(), BN if BN.__class__ is int else exact(BN))
            values = (A.data_ptr(), B.data_ptr(), n)
            launches = memo[facts]
            ready = launches[values]
        except Exception:
            pass
        if ready is None or extra or unknown or ready():
            try:
                return anew(kernel, None, {"A": A, "B": B, "n": n, "BN": BN}, extra, unknown, …)
            except Exception as error:
                end(error)  # at who called
                raise
        # To torch's autograd; other variants may write others.
        tell_written((B,) if launches.written is None else launches.written((A, B)))

Arrays that the call allocates are made from `facts` too; `anew` launches with these very arrays, so
that what it remembers is found under their addresses.
"""

from __future__ import annotations

import collections
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


ENDED = ["        except Exception as error_:", "            end_(error_)", "            raise"]
"""What stands behind the statements that may fail before who called."""

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
        # A masked array is refused, where an array like it has been launched, too.
        ("x.shape", "x.strides", "x.dtype", "x.flags.writeable", "x.__class__"),
        "-1",
    ),
}


def can_be_written(parameters: Sequence[Parameter]) -> bool:
    """Whether no parameter is called like a name of the generated function's own."""
    own = ("REQUIRED", "Exception", "LookupError", "int")
    return not any(
        p.name in own or p.name.endswith("_") or "default_" in p.name for p in parameters
    )


class CallText:
    """Writes `call` for these parameters and one kind of array. `outputs` names the arrays that it
    allocates, `returns` those that it returns; `sized`: the integer arguments that extents of
    `outputs` follow from; `written`: the arguments that are written, mostly."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        kind: str,
        outputs: Sequence[str] = (),
        returns: Sequence[str] = (),
        sized: Collection[str] = (),
        written: Sequence[str] = (),
    ) -> None:
        self.parameters, self.outputs, self.returns = parameters, outputs, returns
        self.written = written
        self.sized, self.reads = sized, ARRAY_KINDS[kind]
        self.names = [p.name for p in parameters]
        self.tensors = [p for p in parameters if p.kind == "tensor"]
        self.keywords = [k for k in LAUNCH_KEYWORDS if k not in self.names]

    def text(self, with_grid: bool, changed: str) -> str:
        """`changed` is an expression that says whether the kernel itself is another one by now
        ("": it cannot be)."""
        # What is left open, and with it the grid and the outputs' extents, follows from all the
        # rest.
        opened = self.is_opened(with_grid)
        meta = ", ".join(f"{p.name!r}: {p.name}" for p in self.parameters if p.kind == "constexpr")
        spread = [
            "        if grid_.__class__ is not tuple:",
            f"            grid_ = spread_(grid_, {{{meta}{', **chosen_[open_]' * opened}}})",
        ]
        lines = [
            *self.head(with_grid),
            "    values_ = facts_ = open_ = ready_ = None",
            *(["    asked_ = grid_"] if with_grid and opened else []),
            "    try:",
            *([f"        if {changed}:", "            raise LookupError"] if changed else []),
            *(spread if with_grid and not opened else []),
            *self.stream(),
        ]
        told, scalars = self.facts_and_scalars()
        facts = ["device_", "stream_", *(["grid_"] if with_grid and not opened else []), *told]
        if opened:
            facts += self.alignments()
            lines += [f"        open_ = ({', '.join([*facts, *scalars])},)"]
            lines += spread if with_grid else []
            facts = ["grid_", "open_"] if with_grid else ["open_"]
        lines.append(f"        facts_ = ({', '.join(facts)},)")
        if self.outputs:
            lines.append(f"        make_ = plans_[{'open_' if opened else 'facts_'}]")
            lines += self.allocated()
        values = [*self.addresses(), *scalars]
        made = f"values_ and ({', '.join(self.outputs)},)" if self.outputs else "None"
        grid = "asked_" if opened else "grid_"
        lines += [
            f"        values_ = ({', '.join(values)},)",
            "        launches_ = memo_[facts_]",
            "        ready_ = launches_[values_]",
            "    except Exception:",
            "        pass",
            "    if ready_ is None or extra_ or unknown_ or ready_():",
            "        try:",
            "            "
            + self.anew(grid if with_grid else "None", f"(values_, facts_, open_, {made})"),
            *ENDED,
            *self.told("launches_"),
        ]
        if self.returns:
            lines.append(f"    return {', '.join(self.returns)}")
        return "\n".join(lines) + "\n"

    def is_opened(self, with_grid: bool) -> bool:
        """Whether the facts of a launch do not tell its grid, or its outputs' extents: they follow
        from what is left open, and that from all the rest."""
        left = any(isinstance(p.default, Auto) for p in self.parameters)
        return left and (with_grid or bool(self.outputs))

    def head(self, with_grid: bool) -> list[str]:
        """The line that says what `call` takes: all parameters by position, and by name all but the
        arrays, which are found among the unknown keywords; and statements that find what is given
        by name, or not at all. What is given by position too stays among the unknown keywords."""
        others = [p for p in self.parameters if p.kind != "tensor"]
        head = ["kernel_", *(["grid_"] if with_grid else [])]
        for p in self.parameters:
            name = p.name if p.kind == "tensor" else f"{p.name}__"
            head.append(f"{name}={None if _is_optional(p) else 'REQUIRED'}")
        head += ["/", "*extra_"]
        head += [f"{p.name}=REQUIRED" for p in others] + [f"{k}=None" for k in self.keywords]
        lines = [f"def call({', '.join(head)}, **unknown_):", "    if unknown_:"]
        for p in self.tensors:
            missing = None if _is_optional(p) else "REQUIRED"
            lines.append(f"        if {p.name} is {missing}:")
            lines.append(f"            {p.name} = unknown_.pop({p.name!r}, {missing})")
        for p in others:
            default = "REQUIRED" if p.default is REQUIRED else f"default_{p.name}"
            lines += [
                f"    if {p.name} is REQUIRED:",
                f"        {p.name} = {default} if {p.name}__ is REQUIRED else {p.name}__",
                f"    elif {p.name}__ is not REQUIRED:",
                f"        unknown_[{p.name!r}] = {p.name}",
            ]
        return lines

    def anew(self, grid: str, keys: str) -> str:
        """The statement that leaves a call to `Launchable.launch_anew`."""
        given = ", ".join(f"{name!r}: {name}" for name in self.names)
        options = ", ".join(f"{k!r}: {k}" for k in self.keywords)
        more = f"extra_, {{**unknown_, {options}}}"
        return f"return anew_(kernel_, {grid}, {{{given}}}, {more}, {keys})"

    def told(self, launches: str) -> list[str]:
        """The statement that tells torch's autograd what one of the `launches` has written."""
        if self.reads is not ARRAY_KINDS["torch"] or not self.tensors:
            return []
        own, every = f"{launches}.written", [p.name for p in self.tensors]
        mostly, all_ = ("".join(f"{name}, " for name in names) for names in (self.written, every))
        return [f"    tell_written_(({mostly}) if {own} is None else {own}(({all_})))"]

    def stream(self) -> list[str]:
        """Statements that find the device and the stream."""
        return [
            f"        device_ = {self.device}",
            f"        stream_ = {'stream' if 'stream' in self.keywords else 'None'}",
            "        if stream_ is None:",
            "            stream_ = stream_of_(device_) if device_ >= 0 else 0",
        ]

    def allocated(self) -> list[str]:
        """Statements that make the outputs."""
        return [f"        {name} = make_[{i}]()" for i, name in enumerate(self.outputs)]

    @property
    def device(self) -> str:
        """The device of an array that is there, if one always is."""
        return self.reads.of(min(self.tensors, key=_is_optional).name, self.reads.device)

    def addresses(self) -> list[str]:
        """Expressions for the addresses, as entries of a tuple: a tensor that is left out has
        none."""
        found = [(p, self.reads.of(p.name, self.reads.address)) for p in self.tensors]
        given = [
            f"*(() if {p.name} is None else ({a},))" if _is_optional(p) else a for p, a in found
        ]
        return given + [self.reads.of(name, self.reads.address) for name in self.outputs]

    def alignments(self) -> list[str]:
        """Expressions for what a variant's facts depend on of the addresses."""
        text = f"{self.reads.address} & {ALIGNMENTS}"
        return [_if_given(p, self.reads.of(p.name, text)) for p in self.tensors]

    def facts_and_scalars(self) -> tuple[list[str], list[str]]:
        """Expressions for what a launch depends on beside addresses, device, stream and grid; those
        for its scalars."""
        facts, scalars = [] if "threads" in self.names else ["threads"], list[str]()
        for p in self.parameters:
            match p.kind:
                case "tensor":
                    told = (*self.reads.facts, *(self.reads.parts if p.dtype in _PARTS else ()))
                    texts = (self.reads.of(p.name, e) for e in told)
                    facts += [_if_given(p, e) for e in texts if e != self.device]
                case "scalar":
                    scalars += [p.name, *told_apart(p)]
                    facts += [p.name] if p.name in self.sized else []
                case "constexpr":  # 2 == 2.0 == True, but they are different constants
                    facts.append(f"{p.name} if {p.name}.__class__ is int else exact_({p.name})")
        return facts, scalars


def _is_optional(p: Parameter) -> bool:
    return p.kind == "tensor" and p.default is None


def _if_given(p: Parameter, text: str) -> str:
    return f"None if {p.name} is None else {text}" if _is_optional(p) else text


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


def written_teller() -> Callable[[Sequence[Any]], None]:
    """What counts the versions of tensors of torch's up, by which its autograd finds that one was
    written after it was kept for a gradient."""
    torch = sys.modules.get("torch")
    found: Any = getattr(torch._C, "_increment_version", None) if torch is not None else None
    if found is None:
        return lambda tensors: None
    try:
        found(())
    except TypeError:  # older ones take one tensor
        return lambda tensors: collections.deque(map(found, tensors), 0).clear()
    return found  # type: ignore[no-any-return]


def calls_of(
    kernel: str, writer: CallText, names: Mapping[str, Any], module: dict[str, Any], reads: Reads
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`call` as a function, without a grid and with one. `names` gives what its text asks for by
    names of its own; `reads` what the kernel took from outside.

    Nothing is faster than a function's own globals and closure, so its globals are those of the
    kernel's `module`, and its closure holds the kernel's own cells and all other names.
    """
    test = reads.test(module, {"kernel_", *LAUNCH_KEYWORDS, *writer.outputs, *writer.names})
    given = {
        "REQUIRED": REQUIRED,
        "Exception": Exception,
        "LookupError": LookupError,
        "int": int,
        "exact_": exact,
        "end_": end_at_caller,
        "sign_": functools.partial(math.copysign, 1.0),
        "stream_of_": stream_reader(),
        "tell_written_": written_teller(),
        **{f"default_{p.name}": p.default for p in writer.parameters},
        **names,
        **test.values,
        **test.cells,
    }
    call, on_grid = (
        _function(
            f"{kernel}{' with grid' * with_grid}",
            writer.text(with_grid, test.text),
            given,
            test.cells,
            module,
        )
        for with_grid in (False, True)
    )
    return call, on_grid


def _function(
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
    """Let `call`, made by `calls_of`, compare with other values."""
    for name, cell in zip(call.__code__.co_freevars, call.__closure__):
        if name in values:
            cell.cell_contents = values[name]
