"""A compiled kernel as a value: all that a launch needs, and nothing of the compiler that made it.

An image is what the disk cache stores, what `CompiledKernel.save` writes and what `tilec.load`
reads. One file holds, in this order: a magic line, the SHA-256 of the rest, the lengths of the
two parts, the header (JSON: every field below) and the payload (the binary, then the stages' text
where they were saved).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilec.ir.errors import TilecError, shown
from tilec.ir.stored import fields_of, read_stored
from tilec.ir.types import DTYPES, DType, TensorMapType
from tilec.runtime.expressions import compile_expression

MAGIC = b"tilec image 1\n"
_LENGTHS = struct.Struct("<QQQ")


class ImageError(TilecError):
    """A file is not an image, is damaged, or was written by another version of the format."""


class ImageFileError(ImageError, OSError):
    """A kernel's file cannot be read or written; `errno` is the system's reason."""


def path_of(given: object) -> Path:
    """A path as the user gave it. Raises ImageError for what is none."""
    try:
        return Path(given)  # type: ignore[arg-type]
    except TypeError:
        hint = 'write a string or a pathlib.Path: "add.tilec"'
        raise ImageError(f"the path of a kernel's file is {shown(given)}", hint=hint) from None


@contextlib.contextmanager
def file_errors(path: Path, what: str) -> Iterator[None]:
    """The system's errors about the file at `path`, which `what` ("read", "written") says the use
    of, as ImageFileError."""
    try:
        yield
    except (OSError, ValueError) as e:  # ValueError: a name with a zero byte, or half a character
        reason = (e.strerror if isinstance(e, OSError) else None) or str(e)
        hint = "pass the path of a file in a folder that exists and that you may use"
        error = ImageFileError(f"{shown(str(path))} cannot be {what}: {reason}", hint=hint)
        error.errno = getattr(e, "errno", None)
        raise error from None


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes of the machine.

    `registers` per thread and `spilled_bytes` per thread are the assembler's figures,
    `blocks_per_sm` the occupancy they allow: None where no assembler was found. `buffers` maps
    the name of each on-chip buffer to its bytes (all its versions). `threads` is what is
    launched, producer warps included.
    """

    registers: int | None
    spilled_bytes: int | None
    shared_bytes: int
    buffers: Mapping[str, int]
    threads: int
    blocks_per_sm: int | None


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call as this variant was compiled for it.

    `kind`: "tensor" or "scalar". For a tensor: `shape` and `strides` (in elements) hold
    compile-time ints and names of run-time values, `align` the power of two up to 16 that divides
    its address and, in bytes, its run-time strides; `written` whether the kernel stores to it;
    `output` whether the call allocates it; `row` the power of two up to 16 that divides the bytes
    of its rows; `dense` the power of two up to 16 that divides its address, where its rows have to
    follow one another without gaps (0: they need not). `default` is a scalar's default value.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int | str, ...] = ()
    strides: tuple[int | str, ...] = ()
    align: int = 1
    written: bool = False
    output: bool = False
    default: int | float | bool | None = None
    row: int = 16
    dense: int = 0


@dataclass(frozen=True, slots=True)
class AbiParam:
    """One parameter of the machine code and where a launch gets its value.

    `role`, `arg`, `dim` as in `tilec.ir.core.Param`; role "grid" is the number of blocks the
    kernel's author asked for in dimension `dim` (a persistent kernel is launched with fewer).
    `type` is "pointer", "tensor_map" or a dtype's name. `name` is what the grid's text calls it.
    """

    role: str
    arg: str
    dim: int
    type: str
    name: str = ""
    tensor_map: TensorMapType | None = None


@dataclass(frozen=True)
class Image:
    """A kernel compiled for one set of facts.

    `name` is the user's name, `symbol` the entry in `binary`, whose `format` is "cubin", "ptx",
    "hsaco" or "object". `grid` is Python text of a tuple of three expressions over names of sizes
    and scalars ("" where the launch gives the grid). `returned` names the outputs a call returns.
    `plan` has the fields of the plan that it was compiled with (none on the CPU).
    `cluster`: blocks of the grid along each dimension that form a cluster; with `exact_cluster` the
    grid must be a multiple of it, otherwise it is rounded up. `split`: launched blocks, neighbours
    in x, for each block of the grid; `parts`: so many times as many, neighbours in z. `packed`:
    tensors that the launch copies so that rows begin at cache lines; the code gets the copies.
    `may_spill`: its fragments take more registers than a thread has, as its author has fixed them.
    `asserts`: what is said where a T.device_assert does not hold; under `debug` the code looks.
    `assumed`: Python text of what T.assume says of sizes and scalars; a launch looks.
    `pdl`: the code waits for the launches before it, before anything else, so that it may be
    launched beside them (programmatic dependent launch). `cooperative`: its blocks wait for one
    another, so that all of the grid must run at once. `own_grid`: tilec has made the grid of
    the loops of a kernel that has none, which may well run over nothing.
    """

    name: str
    symbol: str
    target: str
    arguments: tuple[Argument, ...]
    params: tuple[AbiParam, ...]
    grid: str
    returned: tuple[str, ...]
    resources: Resources
    format: str
    binary: bytes
    persistent: bool = False
    may_alias: bool = False
    wide: bool = False
    cluster: tuple[int, int, int] = (1, 1, 1)
    exact_cluster: bool = False
    split: int = 1
    parts: int = 1
    packed: tuple[str, ...] = ()
    may_spill: bool = False
    asserts: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    debug: bool = False
    pdl: bool = False
    cooperative: bool = False
    own_grid: bool = False
    stages: Mapping[str, str] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def written(self) -> tuple[str, ...]:
        """The arguments that the kernel stores to; none of those that a call allocates."""
        return tuple(a.name for a in self.arguments if a.written and not a.output)

    def to_bytes(self) -> bytes:
        """The image as the content of a file."""
        header = json.dumps(_header(self)).encode()
        stages = zlib.compress(json.dumps(dict(self.stages)).encode(), 6) if self.stages else b""
        body = _LENGTHS.pack(len(header), len(self.binary), len(stages))
        body += header + self.binary + stages
        return MAGIC + hashlib.sha256(body).digest() + body

    @staticmethod
    def from_bytes(data: bytes, origin: str) -> Image:
        """The image in `data`; `origin` names it in messages. Raises ImageError if it is not
        whole."""
        if not data.startswith(MAGIC):
            hint = "pass a file that CompiledKernel.save of this version wrote"
            raise ImageError(f"{origin} is not a tilec image of this version", hint=hint)
        start = len(MAGIC) + 32
        digest, body = data[len(MAGIC) : start], memoryview(data)[start:]
        if hashlib.sha256(body).digest() != digest:
            message = f"{origin} is damaged: its checksum does not match its content"
            raise ImageError(message, hint="compile the kernel again, and save it")
        try:
            n_header, n_binary, n_stages = _LENGTHS.unpack_from(body)
            at = _LENGTHS.size
            fields = json.loads(bytes(body[at : at + n_header]))
            at += n_header
            binary = bytes(body[at : at + n_binary])
            at += n_binary
            stages = json.loads(zlib.decompress(body[at : at + n_stages])) if n_stages else {}
            image = _image(fields, binary, stages)
            _check(image)
        except (struct.error, zlib.error, ArithmeticError, LookupError, RecursionError, TypeError,
                ValueError) as e:  # fmt: skip
            message = f"{origin} was not written by this version of tilec: {shown(str(e))}"
            raise ImageError(message, hint="compile the kernel again, and save it") from None
        return image


_FORMATS = ("cubin", "ptx", "hsaco", "object")
OWN_MEMORY = ("workspace", "counters")
"""Roles of parameters that point to memory which the launch brings along."""
NO_BLOCKS = "(0, 1, 1)"
"""The grid of a launch that another one stands for: it has nothing to do."""
_OF_NOTHING = ("scalar", "grid", "memory", *OWN_MEMORY)  # that no tensor of the call gives
_ROLES = ("tensor", "size", "stride", "elements", "tensor_map", *_OF_NOTHING)


def _check(image: Image) -> None:
    """Raise ValueError for fields that a launch could not use, which name what is not there."""
    arguments = {a.name: a for a in image.arguments}
    for a in image.arguments:
        known = a.kind == "tensor" or (a.kind == "scalar" and not a.written and not a.output)
        if not known or a.dtype not in DTYPES or len(a.strides) not in (0, len(a.shape)):
            raise ValueError(f"the argument {a.name} is a {a.kind} of {a.dtype}")
    for p in image.params:
        of = arguments.get(p.arg)
        rank = 3 if p.role == "grid" else 0 if of is None else len(of.shape)
        takes = p.role in _OF_NOTHING or (of is not None and of.kind == "tensor")
        if p.role not in _ROLES or not takes or (p.role == "scalar" and of is None):
            raise ValueError(f"a parameter is the {p.role} of {p.arg}")
        if p.role in ("size", "stride", "grid") and not 0 <= p.dim < rank:
            raise ValueError(f"a parameter is the {p.role} {p.dim} of {p.arg}")
        if p.role in OWN_MEMORY and (p.type != "pointer" or not 0 < p.dim < 1 << 40):
            raise ValueError(f"{p.role} of {p.dim} bytes and type {p.type}")
        if (p.role == "tensor_map") != (p.type == "tensor_map") or (
            p.type not in DTYPES and p.type not in ("pointer", "tensor_map")
        ):
            raise ValueError(f"a {p.role} of type {p.type}")
    if not set(image.returned) <= {a.name for a in image.arguments if a.output or a.written}:
        raise ValueError(f"it returns {image.returned}")
    for name in image.packed:
        of = arguments.get(name)
        if of is None or of.kind != "tensor" or of.written or of.output or len(of.shape) < 2:
            raise ValueError(f"it packs {name}")
    if image.format not in _FORMATS or min(*image.cluster, image.split, image.parts) < 1:
        raise ValueError(f"format {image.format}, cluster {image.cluster}")
    if image.pdl and image.format not in ("cubin", "ptx"):
        raise ValueError(f"{image.format} that waits for launches before it")
    for text in filter(None, (image.grid, *image.assumed)):
        compile_expression(text)


_PAYLOAD = ("binary", "stages")


def _header(image: Image) -> dict[str, Any]:
    """The image's fields as JSON values, less the payload."""
    return {n: _as_json(getattr(image, n)) for n in fields_of(Image) if n not in _PAYLOAD}


def _as_json(value: Any) -> Any:
    """`value` as JSON has it: a dataclass as the list of its fields."""
    match value:
        case DType():
            return value.name
        case tuple():
            return [*map(_as_json, value)]
        case Mapping():
            return dict(value)
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return [_as_json(getattr(value, name)) for name in fields_of(kind)]
    return value


def _image(fields: object, binary: bytes, stages: object) -> Image:
    if not isinstance(fields, dict):
        raise TypeError(f"the header is {shown(fields)}")
    given, declared = {**fields, "stages": stages}, fields_of(Image)
    read = {n: read_stored(v, declared[n], f"Image.{n}") for n, v in given.items()}
    return Image(**read, binary=binary)
