"""The arguments of a kernel, from words on the command line and from what its annotations say.

An array is `SHAPE:DTYPE:CONTENT`, any part of which may be left out, or a file. The shape is that
of the annotation otherwise, with sizes from other arrays or from `--dim`; the dtype too; the
content is random."""

from __future__ import annotations

import argparse
import ast
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.cli.options import UsageError, heed_progress
from tilec.frontend import bind_constants
from tilec.ir.errors import did_you_mean
from tilec.ir.types import DTYPES, find_dtype
from tilec.jit.specialise import parameters_of, spec_in_memory
from tilec.kernel import Kernel
from tilec.runtime.arguments import REQUIRED, Parameter
from tilec.runtime.expressions import evaluate, is_name, names_in
from tilec.runtime.tensors import array_dtype, contiguous_strides, numpy_dtype

Array = NDArray[Any]

CONTENTS = ("random", "zeros", "ones", "arange")
_SHAPE = re.compile(r"\d+(?:[x,]\d+)*")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
LONGEST_SIZE = 15  # digits
_MOST_INT = 3  # of random integers, which may be indices


@dataclass(frozen=True)
class Words:
    """What the command line says of the arguments, taken apart: `arrays` by name ("" for a file
    that names its arrays itself), `sizes`, `values` of numbers and constants. `seed` of what is
    random."""

    arrays: tuple[tuple[str, str], ...] = ()
    sizes: Mapping[str, int] | None = None
    values: Mapping[str, Any] | None = None
    seed: int = 0


@dataclass(frozen=True)
class Arguments:
    """What the kernel is called with: its parameters in order, and the launch's own keywords."""

    by_name: Mapping[str, Any]
    keywords: Mapping[str, Any]


def read_call(
    options: argparse.Namespace, command: str
) -> tuple[str, Words, tuple[int, ...] | None]:
    """The kernel's place, what is said of its arguments, and `--grid`. From here on progress is
    written where the options ask for it. Raises UsageError."""
    heed_progress(options)
    if options.kernel is None:
        hint = f"write python -m tilec {command} FILE.py:kernel"
        raise UsageError("which kernel is it?", hint=hint)
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: expected a number from 0", hint="write --seed 1")
    sizes = (_pair("--dim", w, "M=256") for w in options.dim)
    values = (_pair("--set", w, "BM=64") for w in options.set)
    words = Words(
        tuple(map(_array_word, options.arg)),
        {name: _size(name, text) for name, text in sizes},
        {name: _value(text) for name, text in values},
        options.seed,
    )
    return options.kernel, words, _grid(getattr(options, "grid", None))


def _grid(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdecimal() for p in parts):
        raise UsageError(f"--grid {text}: a grid is one to three sizes", hint="write --grid 4,2")
    return tuple(map(int, parts))


def _array_word(word: str) -> tuple[str, str]:
    if "=" not in word and word.endswith(".npz"):
        return "", word
    return _pair("--arg", word, "A=256x64:float16")


def _pair(option: str, word: str, example: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"{option} {word}: expected NAME=…", hint=f"write {option} {example}")
    return name.strip(), text.strip()


def _size(name: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--dim {name}={text}: a size is a number", hint=f"write --dim {name}=256")
    if len(text) > LONGEST_SIZE:
        message = f"--dim {name}={text[:LONGEST_SIZE]}…: no array is so large"
        raise UsageError(message, hint=f"write --dim {name}=256")
    return int(text)


def _value(text: str) -> Any:
    """A Python literal, "true" and "false", or else the text itself (the name of a dtype)."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text) if text.lstrip("-") in ("inf", "nan") else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def make_arguments(kernel: Kernel, words: Words, target: str, memory: bool = True) -> Arguments:
    """The arguments of one call on `target`, made anew; without `memory` such that `compile` takes,
    which have shapes only. Raises UsageError."""
    values = dict(words.values or {})
    _check_names(kernel, words, values)
    constants = {p.name: values.get(p.name, p.default) for p in kernel.parameters}
    constants = {p.name: constants[p.name] for p in kernel.parameters if p.kind == "constexpr"}
    _check_given(kernel, values)
    signature = bind_constants(kernel.signature, constants)
    parameters = {p.name: p for p in parameters_of(signature) if p.kind != "output"}
    loaded = _Arrays(kernel, parameters, words, target)
    found: dict[str, Any] = {}
    for name, p in parameters.items():
        make = loaded.make if memory else loaded.describe
        found[name] = make(p) if p.kind == "tensor" else values.get(name, p.default)
    return Arguments(found, {"threads": values["threads"]} if "threads" in values else {})


def _check_names(kernel: Kernel, words: Words, values: Mapping[str, Any]) -> None:
    """Raise UsageError for names that the kernel has not."""
    tensors = [p.name for p in kernel.parameters if p.kind == "tensor"]
    others = [p.name for p in kernel.parameters if p.kind != "tensor"]
    sizes = list(kernel.signature.sizes)
    allocated = {*kernel.options.out, *kernel.signature.allocated} - {*tensors}
    for option, given, known, what, several in (
        ("--arg", [n for n, _ in words.arrays if n], tensors, "array", "arrays"),
        ("--dim", words.sizes or {}, sizes, "size", "sizes"),
        ("--set", values, [*others, "threads"], "number or constant", "numbers and constants"),
    ):
        for name in given:
            if name in known:
                continue
            hint = f"its {several} are {', '.join(known)}" if known else f"it has no {several}"
            for right, names in (("--arg", tensors), ("--dim", sizes), ("--set", others)):
                hint = f"{name} is given by {right}" if name in names else hint
            if name in allocated:
                hint = f"{name} is allocated by the call; leave {option} {name} out"
            message = (
                f"{option} {name}: {kernel.name} has no {what} {name!r}{did_you_mean(name, known)}"
            )
            raise UsageError(message, kernel.signature.loc, hint)


def _check_given(kernel: Kernel, values: Mapping[str, Any]) -> None:
    """Raise UsageError for numbers and constants that nothing gives."""
    missing = [
        p
        for p in kernel.parameters
        if p.kind != "tensor" and p.default is REQUIRED and p.name not in values
    ]
    if missing:
        example = " ".join(f"--set {p.name}={_example(p)}" for p in missing)
        message = f"{kernel.name} also takes {', '.join(p.describe() for p in missing)}"
        raise UsageError(message, kernel.signature.loc, f"add {example}")


def _example(p: Parameter) -> str:
    if p.kind == "constexpr":
        return "64"
    return "0.5" if p.dtype is None or DTYPES[p.dtype].is_float else "3"


# --- arrays ---


class _Arrays:
    """Makes the arrays of one call. All sizes that files and shapes tell are known first, so that
    the order of the options does not matter."""

    def __init__(
        self, kernel: Kernel, parameters: Mapping[str, Parameter], words: Words, target: str
    ) -> None:
        self.kernel, self.target, self.seed = kernel, target, words.seed
        self.words = {name: text for name, text in words.arrays if name}
        self.files: dict[str, Array] = {}
        tensors = {n: p for n, p in parameters.items() if p.kind == "tensor"}
        for name, text in words.arrays:
            self.files |= _load(kernel, name, text, tensors)
        self.sizes = dict(words.sizes or {})
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, p in tensors.items():
            shape = self._told_shape(name)
            if shape is None:
                continue
            self.shapes[name] = shape
            for size, extent in zip(p.shape or (), shape):
                if isinstance(size, str) and is_name(size):
                    self.sizes.setdefault(size, extent)
        self._check_sizes(tensors)
        self.number = {name: i for i, name in enumerate(tensors)}

    def _told_shape(self, name: str) -> tuple[int, ...] | None:
        if name in self.files:
            return self.files[name].shape
        text = self.words.get(name, "").split(":")[0]
        if not text:
            return None
        if not _SHAPE.fullmatch(text):
            hint = f"write --arg {name}=256x64:float16, or {name}=FILE.npy"
            raise UsageError(f"--arg {name}={self.words[name]}: {text!r} is not a shape", hint=hint)
        return tuple(map(int, re.split("[x,]", text)))

    def _check_sizes(self, tensors: Mapping[str, Parameter]) -> None:
        """Raise UsageError where a shape to be made needs what nobody tells."""
        wanted = dict[str, None]()
        for name, p in tensors.items():
            if name in self.files:
                continue
            parts = (
                (p.strides or ()) if name in self.shapes else (*(p.shape or ()), *(p.strides or ()))
            )
            for e in parts:
                wanted |= dict.fromkeys(sorted(names_in(e))) if isinstance(e, str) else {}
        missing = [n for n in wanted if n not in self.sizes]
        if missing:
            one = len(missing) == 1
            raise UsageError(
                f"the size{'' if one else 's'} {', '.join(missing)} of {self.kernel.name} "
                f"{'is' if one else 'are'} not known",
                self.kernel.signature.loc,
                f"add {' '.join(f'--dim {n}=256' for n in missing)}, or arrays with --arg",
            )

    def make(self, p: Parameter) -> Array:
        """The array of a parameter, new."""
        if p.name in self.files:
            return np.array(self.files[p.name], order="K")
        shape, dtype, content = self._form(p)
        rng = np.random.default_rng([self.seed, self.number[p.name]])
        kind = numpy_dtype(array_dtype(dtype, self.target))
        try:
            if math.prod(shape) * np.dtype(kind).itemsize > _memory():
                raise MemoryError  # systems may promise more than they have
            values = _content(p.name, content or "random", shape, kind, rng)
            return values if p.strides is None else self._strided(p, values)
        except (MemoryError, OverflowError) as e:
            said = "x".join(map(str, shape))
            message = f"{p.name} cannot be made: there is no memory for {said} elements of {dtype}"
            raise UsageError(message, hint="give smaller sizes with --dim or --arg") from e

    def describe(self, p: Parameter) -> Any:
        """The same without memory, as `tilec.spec` has it."""
        if p.name in self.files:
            return self.files[p.name]
        shape, dtype, _ = self._form(p)
        if p.strides is None:
            return spec_in_memory(shape, dtype)
        return spec_in_memory(shape, dtype, self._steps(p, shape))

    def _form(self, p: Parameter) -> tuple[tuple[int, ...], str, str]:
        """Shape, dtype and the word for the content of an array to be made."""
        word = self.words.get(p.name, "")
        _, dtype, content, *more = [*word.split(":"), "", ""]
        if any(more):
            hint = f"write --arg {p.name}=256x64:float16:zeros"
            raise UsageError(f"--arg {p.name}={word}: expected SHAPE:DTYPE:CONTENT", hint=hint)
        shape = self.shapes.get(p.name)
        if shape is None:
            shape = self._shape(p)
        if p.shape is not None and len(p.shape) != len(shape):
            message = f"--arg {p.name}={word}: expected {len(p.shape)} sizes ({p.describe()})"
            hint = f"write --arg {p.name}={'x'.join(['64'] * len(p.shape))}"
            raise UsageError(message, self.kernel.signature.loc, hint)
        return shape, self._dtype(p, dtype, word), content

    def _shape(self, p: Parameter) -> tuple[int, ...]:
        if p.shape is None or None in p.shape:
            message = f"{p.name} has no shape in {self.kernel.name}'s annotations"
            hint = f"add --arg {p.name}=256x64:{p.dtype or 'float16'}, or {p.name}=FILE.npy"
            raise UsageError(message, self.kernel.signature.loc, hint)
        return tuple(self._extent(p, e) for e in p.shape)

    def _extent(self, p: Parameter, e: int | str | None) -> int:
        return int(evaluate(e, self.sizes, p.name)) if isinstance(e, str) else int(e or 0)

    def _dtype(self, p: Parameter, name: str, word: str) -> str:
        if not name and p.dtype is None:
            message = f"{p.name} has no dtype in {self.kernel.name}'s annotations"
            hint = f"add --arg {p.name}={word.split(':')[0] or '256x64'}:float16"
            raise UsageError(message, self.kernel.signature.loc, hint)
        found = find_dtype(name or p.dtype)
        if found is None:
            near = did_you_mean(name, DTYPES)
            hint = f"write --arg {p.name}=256x64:float16"
            raise UsageError(f"--arg {p.name}={word}: unknown dtype {name!r}{near}", hint=hint)
        stored = array_dtype(found.name, self.target)
        if p.dtype is not None and stored != array_dtype(p.dtype, self.target):
            raise UsageError(
                f"--arg {p.name}={word}: expected {p.dtype}, got {found.name} ({p.describe()})",
                self.kernel.signature.loc,
                f"leave the dtype out, or write --arg {p.name}={word.replace(name, p.dtype)}",
            )
        return found.name

    def _strided(self, p: Parameter, values: Array) -> Array:
        """`values` in memory with the strides that the annotation asks for."""
        steps = self._steps(p, values.shape)
        span = 1 + sum((n - 1) * s for n, s in zip(values.shape, steps) if n)
        base = np.zeros(max(span, 1), values.dtype)
        at = tuple(s * values.itemsize for s in steps)
        view = np.lib.stride_tricks.as_strided(base, values.shape, at)
        view[...] = values
        return view

    def _steps(self, p: Parameter, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The strides that the annotation asks for, in elements."""
        given = zip(p.strides or (), contiguous_strides(shape))
        return tuple(d if s is None else self._extent(p, s) for s, d in given)


def _memory() -> int:
    """How many bytes of memory the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _content(name: str, content: str, shape: tuple[int, ...], dtype: Any, rng: Any) -> Array:
    count = math.prod(shape)
    between = _RANGE.fullmatch(content)
    real = dtype.kind not in "biu"
    made: Array
    match content:
        case "random" if real:
            made = rng.standard_normal(count)
        case "random":
            made = rng.integers(0, 2 if dtype.kind == "b" else _MOST_INT + 1, count)
        case "zeros":
            made = np.zeros(count)
        case "ones":
            made = np.ones(count)
        case "arange":
            made = np.arange(count)
        case _ if between and int(between[1]) <= int(between[2]):
            low, high = int(between[1]), int(between[2])
            made = rng.uniform(low, high, count) if real else rng.integers(low, high + 1, count)
        case _:
            message = f"--arg {name}: unknown content {content!r}{did_you_mean(content, CONTENTS)}"
            hint = f"write {', '.join(CONTENTS)}, or 0..63 for numbers between"
            raise UsageError(message, hint=hint)
    return made.astype(dtype).reshape(shape)


def _load(
    kernel: Kernel, name: str, text: str, tensors: Mapping[str, Parameter]
) -> dict[str, Array]:
    """The arrays that a word takes from a file: of an .npz without a name all that it has."""
    file, _, key = text.rpartition(":") if ".npz:" in text else (text, "", name)
    if not file.endswith((".npy", ".npz")):
        return {}
    try:
        content = np.load(Path(file), allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise UsageError(f"--arg {text}: {file} cannot be read: {e}") from e
    if isinstance(content, np.ndarray):
        return {name: _typed(content, tensors[name])}
    with content:
        if not name:
            found = [n for n in content.files if n in tensors]
            if not found:
                raise UsageError(
                    f"--arg {file}: no array of {file} ({', '.join(content.files)}) has the name "
                    f"of one of {kernel.name}'s ({', '.join(tensors)})",
                    hint=f"write --arg {next(iter(tensors), 'A')}={file}:KEY",
                )
            return {n: _typed(content[n], tensors[n]) for n in found}
        if key not in content.files:
            near = did_you_mean(key, content.files)
            hint = f"it has {', '.join(content.files)}; write --arg {name}={file}:KEY"
            raise UsageError(f"--arg {name}={text}: {file} has no array {key!r}{near}", hint=hint)
        return {name: _typed(content[key], tensors[name])}


def _typed(array: Array, p: Parameter) -> Array:
    """An array of a file, which has lost the dtype if NumPy has none of the kind (bfloat16,
    float8): then that of the annotation."""
    if array.dtype.kind != "V" or p.dtype is None:
        return array
    kind = numpy_dtype(array_dtype(p.dtype, ""))
    return array.view(kind) if kind.itemsize == array.itemsize else array
