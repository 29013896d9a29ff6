"""The way of a launch that has been made before: one Python function, written for one kernel's
signature.

Everything a launch depends on (addresses, shapes, strides, dtypes, devices, scalars, constants,
grid, stream) goes into one tuple; a dictionary maps it to a launch made ready, which takes no
arguments. For three torch tensors this is about 1 us of Python. Whatever is not found, or goes
wrong on the way (another kind of array, a missing argument), goes to `Kernel.launch_anew`, which
checks all of it, compiles what is missing and fills the dictionary.

The text for `def add(A, B, n: T.int32, BN: T.constexpr = 128)` is

    def call(self, A=REQUIRED, B=REQUIRED, n=REQUIRED, BN=default_BN, *extra, stream=None,
    **unknown):
        key = what = None
        try:
            device = A.get_device() if stream is None: stream = stream_of(device) if device >= 0
            else 0 key = (device, stream, A.data_ptr(), A.shape, A.stride(), A.dtype,
            B.get_device(), …, n, BN, BN.__class__) ready = memo[key]
        except Exception:
            return anew(self, None, {"A": A, "B": B, "n": n, "BN": BN}, extra, unknown, stream,
            key, what)
        if extra or unknown or ready():
            return anew(…)
"""

from __future__ import annotations

import functools
import linecache
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilec.runtime.arguments import REQUIRED, Parameter

LAUNCH_KEYWORDS = ("stream", "threads")


def write_launcher(
    parameters: Sequence[Parameter],
    outputs: Sequence[str],
    returns: Sequence[str],
    with_grid: bool,
) -> str:
    """The text of `call` for these parameters; `outputs` names the arrays it allocates, `returns`
    the arrays it returns."""
    names = [p.name for p in parameters]
    keywords = [k for k in LAUNCH_KEYWORDS if k not in names]
    signature = [
        f"{p.name}={'REQUIRED' if p.default is REQUIRED else f'default_{p.name}'}"
        for p in parameters
    ]
    head = ["self", *(["grid_"] if with_grid else []), *signature, "*extra_"]
    head += [f"{k}=None" for k in keywords] + ["**unknown_"]
    first = next(p.name for p in parameters if p.kind == "tensor")
    stream = "stream" if "stream" in keywords else "None"
    lines = [f"def call({', '.join(head)}):", "    key_ = what_ = None", "    try:"]
    if with_grid:
        meta = ", ".join(f"{p.name!r}: {p.name}" for p in parameters if p.kind == "constexpr")
        lines += [
            "        if grid_.__class__ is not tuple:",
            f"            grid_ = spread_(grid_, {{{meta}}})",
        ]
    lines += [
        f"        device_ = {first}.get_device()",
        f"        stream_ = {stream}",
        "        if stream_ is None:",
        "            stream_ = stream_of_(device_) if device_ >= 0 else 0",
    ]
    if outputs:
        what = [part for p in parameters for part in _output_key(p)]
        lines += [f"        what_ = (device_, {', '.join(what)},)", "        make_ = plans_[what_]"]
        lines += [f"        {name} = make_[{i}]()" for i, name in enumerate(outputs)]
    key = ["device_", "stream_", *(["grid_"] if with_grid else [])]
    key += ["threads"] if "threads" in keywords else []
    key += [part for p in parameters for part in _launch_key(p, p.name == first)]
    key += [f"{name}.data_ptr()" for name in outputs]
    given = ", ".join(f"{name!r}: {name}" for name in names)
    options = ", ".join(f"{k!r}: {k}" for k in keywords)
    grid = "grid_" if with_grid else "None"
    anew = f"anew_(self, {grid}, {{{given}}}, extra_, {{**unknown_, {options}}}, key_, what_)"
    lines += [
        f"        key_ = ({', '.join(key)},)",
        "        ready_ = memo_[key_]",
        "    except Exception:",
        f"        return {anew}",
        "    if extra_ or unknown_ or ready_():",
        f"        return {anew}",
    ]
    if returns:
        lines.append(f"    return {', '.join(returns)}")
    return "\n".join(lines) + "\n"


def _launch_key(p: Parameter, first: bool) -> list[str]:
    """What a prepared launch depends on: everything about the argument, its address included."""
    n = p.name
    if p.kind == "tensor":
        parts = [f"{n}.data_ptr()", f"{n}.shape", f"{n}.stride()", f"{n}.dtype"]
        return parts if first else [*parts, f"{n}.get_device()"]
    return _value_key(p)


def _output_key(p: Parameter) -> list[str]:
    """What the outputs' shapes, dtypes and device depend on."""
    return [f"{p.name}.shape", f"{p.name}.dtype"] if p.kind == "tensor" else _value_key(p)


def _value_key(p: Parameter) -> list[str]:
    # 2 == 2.0 == True and 0.0 == -0.0, but they are different constants and different bits.
    if p.kind == "constexpr" or p.dtype is None:
        return [
            p.name,
            f"{p.name}.__class__",
            *([f"sign_({p.name})"] if p.kind == "scalar" else []),
        ]
    return [p.name, f"sign_({p.name})"] if p.dtype.startswith(("float", "bfloat")) else [p.name]


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
    names: Mapping[str, Any],
) -> Callable[..., Any]:
    """`call` as a function. `names` gives its `memo_`, `plans_`, `anew_` and `spread_`."""
    text = write_launcher(parameters, outputs, returns, with_grid)
    file = f"<tilec launch of {kernel}{' with grid' if with_grid else ''} {id(names):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {
        "REQUIRED": REQUIRED,
        "sign_": functools.partial(math.copysign, 1.0),
        "stream_of_": stream_reader(),
        **{f"default_{p.name}": p.default for p in parameters},
        **names,
    }
    exec(compile(text, file, "exec"), space)
    call: Callable[..., Any] = space["call"]
    return call
