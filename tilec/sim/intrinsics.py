"""What LLVM's intrinsics do that the GPU emitters print: `intrinsic(name)`.

LLVM's own are in the language reference (https://llvm.org/docs/LangRef.html), NVIDIA's in the NVPTX
guide and the PTX ISA, AMD's in the AMDGPU guide and the MI300 ISA. The fast functions are given
here to the last bit, with results below 2**-126 taken as zero; the machines are 1 or 2 ulp off.
Matrix instructions are rows (`tilec.ir.instr`) and have their semantics there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilec.ir import semantics
from tilec.ir.instr.machine import nothing
from tilec.ir.instr.semantics import Semantics, absorbing, waiting
from tilec.ir.types import FLOAT8_E4M3, FLOAT8_E5M2, DType
from tilec.sim import numbers
from tilec.sim.arithmetic import BY_BITS, INTEGERS, fma, with_overflow
from tilec.sim.threads import first_lane, gather, lane_numbers
from tilec.sim.undefined import applied, unsigned

Value = Any

_finfo: Any = ml_dtypes.finfo
DISPATCH_PACKET = 1 << 62
"""The address that `llvm.amdgcn.dispatch.ptr` gives. At byte 12 of the packet is the grid's size in
threads, three words of 32 bits (HSA, "AQL kernel dispatch packet")."""

_LEAST = np.float32(2.0**-126)
_SUFFIXES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}


def intrinsic(name: str) -> Semantics | None:
    """The semantics of an intrinsic, by its full name; None if it has none."""
    found = SEMANTICS.get(name)
    if found is not None:
        return found
    return _typed(name)


_SPECIAL = re.compile(
    r"^llvm\.(nvvm\.(ex2|lg2|rcp|rsqrt|sin|cos|tanh)\.approx|amdgcn\.(exp2|log|rcp|rsq|sin|cos)\.)"
)
_SHUFFLE = re.compile(
    r"^llvm\.(nvvm\.shfl\.|amdgcn\.(update\.dpp|ds\.swizzle|ds\.bpermute|readfirstlane))"
)


def reads(name: str, operand: int) -> bool:
    """Whether an intrinsic reads an operand; LLVM puts poison for one that it does not.
    (`update.dpp` as it is used here has no lane that keeps what it had before.)"""
    return (name, operand) != ("llvm.amdgcn.update.dpp.i32", 0)


def work_of(name: str) -> str:
    """What an intrinsic asks of the machine besides its arithmetic: "special" (a special function),
    "shuffle" (an exchange between lanes) or ""."""
    if _SPECIAL.search(name):
        return "special"
    return "shuffle" if _SHUFFLE.search(name) else ""


@functools.cache
def _typed(name: str) -> Semantics | None:
    """Of an intrinsic that LLVM has for many types."""
    if name in _OF_FLOAT8:
        make, dtype = _OF_FLOAT8[name]
        ocp, fnuz = (_pure(make(semantics.numpy_dtype(dtype, amds))) for amds in (False, True))
        return absorbing(
            lambda m, *args: (fnuz if m.block.target.has("float8_fnuz") else ocp)(m, *args)
        )
    converted = re.fullmatch(r"llvm\.(fpto[su]i)\.sat\.(i\d+)\.(\w+)", name)
    if converted:
        opcode, to, source = converted.groups()
        kind = _SUFFIXES[source]
        return _pure(lambda x: numbers.cast(opcode, x, kind, to))
    found = re.fullmatch(r"llvm\.([a-z.0-9]+?)\.(?:v\d+)?(i|bf|f)(\d+)(?:\.i\d+)?", name)
    if found is None:
        return _pure(_ONE_TYPE[name]) if name in _ONE_TYPE else None
    stem, letter, bits = found.groups()
    if stem.endswith(".with.overflow"):
        return _pair(with_overflow(stem.partition(".")[0]))
    if stem in BY_BITS:
        return _pure(functools.partial(BY_BITS[stem], int(bits)))
    compute = (
        (INTEGERS if letter == "i" else _FLOATS).get(stem)
        or _ONE_TYPE.get(name)
        or _ONE_TYPE.get(name.removesuffix("32"))
    )
    return None if compute is None else _pure(compute)


def _pure(compute: Callable[..., Value]) -> Semantics:
    """Of an intrinsic that only computes: what it makes of undefined values is undefined."""
    return absorbing(lambda m, *args: (numbers.each(compute, *args),))


def _pair(compute: Callable[..., tuple[Value, Value]]) -> Semantics:
    """Of an intrinsic with two results."""

    @absorbing
    def semantics(m: Any, *args: Value) -> tuple[Value, ...]:
        made = applied(compute, *args)
        return made if type(made) is tuple else (made, made)

    return semantics


# --- arithmetic ---


def _is_class(x: Value, mask: Value) -> Value:
    """`llvm.is.fpclass`: two bits for nan, then inf, normal, subnormal and 0 below 0, and the same
    above it, from the least to the greatest."""
    size, least = np.abs(x), _finfo(x.dtype).smallest_normal
    rank = np.where(size == 0, 0, np.where(size < least, 1, np.where(np.isinf(size), 3, 2)))
    bit = np.where(np.signbit(x), 5 - rank, 6 + rank)
    return np.where(np.isnan(x), (mask & 3) != 0, mask >> bit & 1 != 0)[()]


_FLOATS: dict[str, Callable[..., Value]] = {
    "is.fpclass": _is_class, "fma": fma, "fmuladd": fma, "fabs": np.abs, "floor": np.floor,
    "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint,
    "roundeven": np.rint, "sqrt": np.sqrt, "minnum": np.fmin, "maxnum": np.fmax,
    "minimum": np.minimum, "maximum": np.maximum, "copysign": np.copysign, "ldexp": np.ldexp,
    "canonicalize": lambda x: x,
}  # fmt: skip


def _flushed(x: Value) -> Value:
    """Zero, of its sign, for what is below 2**-126."""
    kept: Value = np.where(np.abs(x) < _LEAST, np.copysign(np.float32(0), x), x)
    return kept[()]


def _exp2(x: Value) -> Value:
    return _flushed(np.exp2(_flushed(x).astype(np.float64)).astype(np.float32))


def _reciprocal(x: Value) -> Value:
    return _flushed(np.float32(1) / _flushed(x))


def _inverse_root(x: Value) -> Value:
    return (1.0 / np.sqrt(x.astype(np.float64))).astype(np.float32)


def _log2(x: Value) -> Value:
    with np.errstate(all="ignore"):
        return np.log2(_flushed(x).astype(np.float64)).astype(np.float32)


def _of_angle(function: Callable[..., Value], unit: float) -> Callable[[Value], Value]:
    """A sine or cosine; `unit`: how long 1 is."""

    def compute(x: Value) -> Value:
        with np.errstate(all="ignore"):
            return _flushed(function(_flushed(x).astype(np.float64) * unit).astype(np.float32))

    return compute


_TF32_NAN = np.uint32(0x7FFFFFFF)


def round_tf32(x: Value, nan: Any = _TF32_NAN) -> Value:
    """float32 rounded to 10 bits of fraction, nearest even; every nan gets the bits `nan`, if not
    given those of `cvt.rn.tf32.f32`."""
    made: Value = np.where(np.isnan(x), nan.view(np.float32), semantics.round_tf32(x))
    return made[()]


# --- float8 ---


def _narrow(kind: Any) -> Callable[[Value], Value]:
    """float32 to the bits of a float8 (uint8): nearest even, saturating, one nan."""
    largest, nan = float(_finfo(kind).max), 0x80 if np.dtype(kind).name.endswith("fnuz") else 0x7F

    def convert(x: Value) -> Value:
        bits = np.clip(x, -largest, largest).astype(kind).view(np.uint8)
        made: Value = np.where(np.isnan(x), np.uint8(nan), bits)
        return made[()]

    return convert


def _pack_ptx(kind: Any) -> Callable[..., Value]:
    """`cvt.rn.satfinite.*x2.f32 d, a, b`: a in the upper byte, b in the lower one."""
    narrow = _narrow(kind)

    def convert(a: Value, b: Value) -> Value:
        high, low = narrow(a).astype(np.uint16), narrow(b).astype(np.uint16)
        return (high << np.uint16(8) | low).view(np.int16)

    return convert


def _unpack_ptx(kind: Any) -> Callable[..., Value]:
    """`cvt.rn.f16x2.*x2`: the lower byte first."""

    def convert(pair: Value) -> Value:
        bits = unsigned(pair)
        parts = (bits & np.uint16(0xFF), bits >> np.uint16(8))
        return tuple(p.astype(np.uint8).view(kind).astype(np.float16) for p in parts)

    return convert


def _pack_amd(kind: Any) -> Callable[..., Value]:
    """`v_cvt_pk_*_f32`: a in the lower byte, b in the upper one of the half of `old` that `high`
    names."""
    narrow = _narrow(kind)

    def convert(a: Value, b: Value, old: Value, high: Value) -> Value:
        pair = narrow(a).astype(np.uint32) | narrow(b).astype(np.uint32) << np.uint32(8)
        bits = unsigned(old)
        if high:
            bits = bits & np.uint32(0xFFFF) | pair << np.uint32(16)
        else:
            bits = bits & np.uint32(0xFFFF0000) | pair
        return bits.view(np.int32)

    return convert


def _unpack_amd(kind: Any) -> Callable[..., Value]:
    """`v_cvt_f32_*`: of byte `number` of a word."""

    def convert(word: Value, number: Value) -> Value:
        byte = unsigned(word) >> np.uint32(8 * int(number)) & np.uint32(0xFF)
        return byte.astype(np.uint8).view(kind).astype(np.float32)

    return convert


_ONE_TYPE: dict[str, Callable[..., Value]] = {
    "llvm.nvvm.f2tf32.rn": lambda x: round_tf32(x).view(np.int32),
    "llvm.nvvm.ex2.approx.ftz.f": _exp2,
    "llvm.nvvm.rcp.approx.ftz.f": _reciprocal,
    "llvm.nvvm.rsqrt.approx.f": _inverse_root,
    "llvm.nvvm.lg2.approx.ftz.f": _log2,
    "llvm.nvvm.sin.approx.ftz.f": _of_angle(np.sin, 1),
    "llvm.nvvm.cos.approx.ftz.f": _of_angle(np.cos, 1),
    "llvm.nvvm.f2bf16.rn": lambda x: numbers.cast("fptrunc", x, "float", "bfloat"),
    "llvm.nvvm.div.full": lambda a, b: a / b,
    "llvm.nvvm.ff.to.e4m3x2.rn": _pack_ptx(ml_dtypes.float8_e4m3fn),
    "llvm.nvvm.ff.to.e5m2x2.rn": _pack_ptx(ml_dtypes.float8_e5m2),
    "llvm.nvvm.e4m3x2.to.f16x2.rn": _unpack_ptx(ml_dtypes.float8_e4m3fn),
    "llvm.nvvm.e5m2x2.to.f16x2.rn": _unpack_ptx(ml_dtypes.float8_e5m2),
    "llvm.amdgcn.exp2.f32": _exp2,
    "llvm.amdgcn.rcp.f32": _reciprocal,
    "llvm.amdgcn.rsq.f32": _inverse_root,
    "llvm.amdgcn.log.f32": _log2,
    "llvm.amdgcn.sin.f32": _of_angle(np.sin, 2 * np.pi),
    "llvm.amdgcn.cos.f32": _of_angle(np.cos, 2 * np.pi),
    "llvm.amdgcn.fract.f32": lambda x: x - np.floor(x),
}

# Of the target's float8: OCP's, or the FNUZ kind.
_OF_FLOAT8: dict[str, tuple[Callable[[Any], Callable[..., Value]], DType]] = {
    "llvm.amdgcn.cvt.pk.fp8.f32": (_pack_amd, FLOAT8_E4M3),
    "llvm.amdgcn.cvt.pk.bf8.f32": (_pack_amd, FLOAT8_E5M2),
    "llvm.amdgcn.cvt.f32.fp8": (_unpack_amd, FLOAT8_E4M3),
    "llvm.amdgcn.cvt.f32.bf8": (_unpack_amd, FLOAT8_E5M2),
}


# --- lanes ---


def _shuffle_index(m: Any, mask: Value, value: Value, lane: Value, clamp: Value) -> Any:
    """`shfl.sync.idx` over a whole warp: from lane `lane` modulo 32."""
    return (gather(m, value, m.full(lane) & 31),)


def _shuffle_butterfly(m: Any, mask: Value, value: Value, flip: Value, clamp: Value) -> Any:
    """`shfl.sync.bfly` over a whole warp."""
    return (gather(m, value, (lane_numbers(m) ^ m.full(flip)) & 31),)


def _dpp(m: Any, old: Value, value: Value, control: Value, *masks: Value) -> Any:
    """`quad_perm`: lane i of each four takes the lane that bits 2 i of the control name."""
    lane = lane_numbers(m)
    return (gather(m, value, lane & ~3 | int(control) >> 2 * (lane & 3) & 3),)


def _swizzle(m: Any, value: Value, pattern: Value) -> Any:
    """`DS_SWIZZLE_B32` in bit-mask mode: of each 32 lanes, ((lane & and) | or) ^ xor."""
    lane, p = lane_numbers(m), int(pattern)
    return (gather(m, value, lane & ~31 | ((lane & p & 31) | p >> 5 & 31) ^ p >> 10 & 31),)


def _bpermute(m: Any, address: Value, value: Value) -> Any:
    """`DS_BPERMUTE_B32`: from lane address / 4, modulo the wave."""
    return (gather(m, value, m.full(address) >> 2 & m.block.warp_size - 1),)


def _thread(m: Any) -> Any:
    return (m.lanes.astype(np.int32),)


def _of_block(read: Callable[[Any], Any], dim: int) -> Semantics:
    return lambda m: (np.int32(read(m.block)[dim]),)


def _cluster_place(block: Any) -> tuple[int, ...]:
    """Where a block is in its cluster, x first."""
    return tuple(i % c for i, c in zip(block.index, block.cluster_dims))


SEMANTICS: dict[str, Semantics] = {
    "llvm.nvvm.read.ptx.sreg.tid.x": _thread,
    **{
        f"llvm.nvvm.read.ptx.sreg.{word}.{letter}": _of_block(read, dim)
        for dim, letter in enumerate("xyz")
        for word, read in (
            ("ctaid", lambda block: block.index),
            ("nctaid", lambda block: block.grid),
            ("cluster.ctaid", _cluster_place),
        )
    },
    "llvm.nvvm.shfl.sync.idx.i32": _shuffle_index,
    "llvm.nvvm.shfl.sync.bfly.i32": _shuffle_butterfly,
    "llvm.amdgcn.workitem.id.x": _thread,
    **{
        f"llvm.amdgcn.workgroup.id.{letter}": _of_block(lambda block: block.index, dim)
        for dim, letter in enumerate("xyz")
    },
    "llvm.amdgcn.dispatch.ptr": lambda m: (np.int64(DISPATCH_PACKET),),
    "llvm.amdgcn.readfirstlane.i32": lambda m, x: (first_lane(m, x),),
    "llvm.amdgcn.update.dpp.i32": _dpp,
    "llvm.amdgcn.ds.swizzle": _swizzle,
    "llvm.amdgcn.ds.bpermute": _bpermute,
    "llvm.amdgcn.s.barrier": waiting(lambda m: m.block_barrier()),
    "llvm.amdgcn.s.sleep": waiting(lambda m, clocks: m.pause()),
    "llvm.amdgcn.s.waitcnt": nothing,  # the fences around it say the same
    "llvm.amdgcn.wave.barrier": lambda m: m.warp_sync(),
}
