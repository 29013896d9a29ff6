"""What LLVM's instruction selectors can do, as tables: what they cannot ends the process, not the
compile.

LLVM reports an intrinsic that an architecture lacks with "Cannot select" and `abort()`, too much
LDS with `exit(1)`, and a missing library function with a wrong object. `check_intrinsics` refuses
all of them first. Every row was found by giving the intrinsic to LLVM 22.1 in a child process, once
for each architecture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilec.ir.errors import InternalError, did_you_mean
from tilec.target import Target


@dataclass(frozen=True, slots=True)
class Refused:
    """Intrinsics that start with `stem` and end with one of `types` (any if empty).

    `unless_feature`: a target that has it can select them; `unless_flag`: so can any target if the
    call carries this fast-math flag. `instead` says what to emit.
    """

    stem: str
    types: tuple[str, ...] = ()
    unless_feature: str = ""
    unless_flag: str = ""
    instead: str = ""

    def covers(self, name: str) -> bool:
        if name != self.stem and not name.startswith(self.stem + "."):
            return False
        return not self.types or name.rsplit(".", 1)[-1] in self.types


def _each(stems: str, **row: object) -> tuple[Refused, ...]:
    return tuple(Refused(stem, **row) for stem in stems.split())  # type: ignore[arg-type]


_NO_LIBRARY = "llvm.tan llvm.asin llvm.acos llvm.atan llvm.atan2 llvm.sinh llvm.cosh"

_NVPTX = (
    *_each("llvm.sin llvm.cos", types=("f64",), instead="a polynomial"),
    *_each("llvm.sin llvm.cos llvm.tanh", unless_flag="afn", instead="the `afn` form or asm"),
    *_each("llvm.exp llvm.exp10", instead="llvm.exp2 of a scaled argument"),
    *_each("llvm.log llvm.log2 llvm.log10", instead="llvm.nvvm.lg2.approx.f"),
    *_each("llvm.pow", instead="exp2(y * log2(x))"),
    *_each(_NO_LIBRARY, instead="a formula of exp2 and lg2"),
    *_each("llvm.exp2 llvm.tanh", types=("f64",), instead="a polynomial"),
    *_each("llvm.canonicalize", types=("bf16",), instead="a conversion to float and back"),
    *_each(
        "llvm.nvvm.read.ptx.sreg.clusterid llvm.nvvm.read.ptx.sreg.cluster "
        "llvm.nvvm.barrier.cluster llvm.nvvm.fence.sc.cluster llvm.nvvm.mapa "
        "llvm.nvvm.getctarank llvm.nvvm.griddepcontrol",
        unless_feature="cluster",
    ),
    *_each("llvm.nvvm.wgmma", unless_feature="wgmma"),
    *_each("llvm.nvvm.setmaxnreg", unless_feature="setmaxnreg"),
    *_each("llvm.nvvm.stmatrix", unless_feature="stmatrix"),
    *_each(
        "llvm.nvvm.cp.async.bulk llvm.nvvm.fence.proxy llvm.nvvm.fence.mbarrier_init "
        "llvm.nvvm.prefetch llvm.nvvm.elect.sync",
        unless_feature="tma",
    ),
    *_each(
        "llvm.nvvm.ff.to.e4m3x2 llvm.nvvm.ff.to.e5m2x2 llvm.nvvm.e4m3x2 llvm.nvvm.e5m2x2 "
        "llvm.nvvm.f16x2.to.e4m3x2 llvm.nvvm.f16x2.to.e5m2x2",
        unless_feature="float8",
        instead="integer arithmetic",
    ),
    *_each("llvm.nvvm.f2tf32.rn", unless_feature="wgmma", instead="integer arithmetic"),
)

_AMDGPU = (
    *_each(_NO_LIBRARY + " llvm.tanh", instead="a formula of exp2 and log2"),
    *_each(
        "llvm.sin llvm.cos llvm.exp llvm.exp2 llvm.exp10 llvm.log llvm.log2 llvm.log10 llvm.pow",
        types=("f64",),
        instead="a polynomial",
    ),
)

_ROWS: dict[str, tuple[Refused, ...]] = {"cuda": _NVPTX, "hip": _AMDGPU, "cpu": ()}

_AMD_SELECTED = {
    "": """
    workitem.id.x workitem.id.y workitem.id.z workgroup.id.x workgroup.id.y workgroup.id.z
    dispatch.ptr kernarg.segment.ptr implicitarg.ptr groupstaticsize wavefrontsize
    mbcnt.lo mbcnt.hi ballot readfirstlane readlane writelane inverse.ballot icmp set.inactive
    wave.reduce.umax
    ds.bpermute ds.permute ds.swizzle mov.dpp update.dpp perm
    s.barrier wave.barrier s.waitcnt s.sleep s.sethalt s.setprio s.memtime s.memrealtime s.getreg
    s.dcache.wb endpgm
    sched.barrier sched.group.barrier iglp.opt
    sbfe ubfe mul.i24 mul.u24 sdot4 fdot2
    exp2 log rcp rsq sqrt sin cos fract fmed3 cvt.pkrtz ldexp class div.fixup
    make.buffer.rsrc raw.ptr.buffer.load raw.ptr.buffer.store
    raw.ptr.buffer.atomic.fadd raw.ptr.buffer.atomic.add is.shared
    """,
    "mfma": """
    raw.ptr.buffer.load.lds global.load.lds
    mfma.f32.32x32x8f16 mfma.f32.16x16x16f16 mfma.f32.32x32x8bf16.1k mfma.f32.16x16x16bf16.1k
    mfma.f32.32x32x2f32 mfma.f32.16x16x4f32 mfma.f64.16x16x4f64
    """,
    "float8": """
    cvt.pk.fp8.f32 cvt.pk.bf8.f32 cvt.pk.f32.fp8 cvt.pk.f32.bf8 cvt.f32.fp8 cvt.f32.bf8
    cvt.sr.fp8.f32
    """,
    "wmma": "wmma.f32.16x16x16.f16 wmma.f32.16x16x16.bf16 wmma.i32.16x16x16.iu8",
    "mfma_cdna2": "mfma.i32.32x32x8i8 mfma.i32.16x16x16i8",
    "mfma_cdna3": """
    mfma.i32.32x32x16.i8 mfma.i32.16x16x32.i8
    mfma.f32.32x32x16.fp8.fp8 mfma.f32.32x32x16.fp8.bf8 mfma.f32.32x32x16.bf8.fp8
    mfma.f32.32x32x16.bf8.bf8 mfma.f32.16x16x32.fp8.fp8 mfma.f32.16x16x32.fp8.bf8
    mfma.f32.16x16x32.bf8.fp8 mfma.f32.16x16x32.bf8.bf8 smfmac.f32.16x16x32.f16
    """,
    "mfma_xf32": "mfma.f32.32x32x4.xf32 mfma.f32.16x16x8.xf32",
    "mfma_cdna4": """
    mfma.f32.32x32x16.f16 mfma.f32.16x16x32.f16 mfma.f32.32x32x16.bf16 mfma.f32.16x16x32.bf16
    mfma.i32.32x32x32.i8 mfma.i32.16x16x64.i8
    permlane16.swap permlane32.swap ds.read.tr16.b64 ds.read.tr8.b64 prng.b32
    """,
}
"""`llvm.amdgcn.*` that a target with the feature ("": every one) selects, without the prefix and
without type suffixes. All others are refused."""

_CALLED = re.compile(r"@(llvm\.[\w.]+)\(")
_INLINE_ASM = re.compile(r'\basm (?:sideeffect |alignstack |inteldialect )*"')
_LDS = re.compile(r"addrspace\(3\) global \[(\d+) x (i8|i16|i32|i64|half|bfloat|float|double)\]")
_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "bfloat": 2, "float": 4, "double": 8}
_LDS_DMA = re.compile(r"call void @llvm\.amdgcn\.(?:raw\.ptr\.buffer|global)\.load\.lds.*")
_LDS_DMA_SIZES = {"mfma": ("1", "2", "4"), "lds_dma_128": ("12", "16")}
_TYPE_SUFFIX = re.compile(r"(v\d+)?(i|f|bf|p)\d+")
_NO_OPCODE = {
    "hip": re.compile(r"\bfrem (?:\w+ )*bfloat\b"),
    "cpu": re.compile(
        r"\bfptrunc (?:\w+ )*(?:<\d+ x )?(?:float|double)\b.* to (?:<\d+ x )?bfloat\b"
        r"|\bfptrunc (?:\w+ )*(?:<\d+ x )?double\b.* to (?:<\d+ x )?half\b"
    ),
}


def check_intrinsics(llvm_text: str, target: Target) -> None:
    """Refuse LLVM text that LLVM would end the process on, or whose object would call a missing
    function.

    Raises InternalError, naming the intrinsic, the architecture and what to emit instead: the code
    generator chose a form that its target does not have.
    """
    names = sorted(set(_CALLED.findall(llvm_text)))
    for name in names:
        for row in _ROWS[target.kind]:
            if row.covers(name) and _is_refused(row, name, llvm_text, target):
                raise _cannot(name, target, row.instead)
    unfit = _NO_OPCODE.get(target.kind)
    if unfit and (match := unfit.search(llvm_text)):
        raise _cannot(match[0], target, "the same in integer or float arithmetic")
    if target.kind == "hip":
        _check_amd(names, llvm_text, target)


def _is_refused(row: Refused, name: str, text: str, target: Target) -> bool:
    if row.unless_feature:
        return not target.has(row.unless_feature)
    if row.unless_flag:
        calls = re.finditer(rf"\bcall ([^@\n]*)@{re.escape(name)}\(", text)
        return any({row.unless_flag, "fast"}.isdisjoint(c[1].split()) for c in calls)
    return True


def _check_amd(names: list[str], text: str, target: Target) -> None:
    known = frozenset(
        name
        for feature, names in _AMD_SELECTED.items()
        if not feature or target.has(feature)
        for name in names.split()
    )
    for name in names:
        if not name.startswith("llvm.amdgcn."):
            continue
        stem = _without_types(name.removeprefix("llvm.amdgcn."), known)
        if stem not in known:
            raise _cannot(name, target, "one of the table", did_you_mean(stem, known))
    if match := _INLINE_ASM.search(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : text.find("\n", match.end())]
        raise _cannot("inline assembly", target, "an intrinsic", f": {line.strip()[:120]}")
    for call in _LDS_DMA.findall(text):
        size = call.split(", ")[2].removeprefix("i32 ").rstrip(")")
        if not any(size in s for key, s in _LDS_DMA_SIZES.items() if target.has(key)):
            raise _cannot(f"a load to LDS of {size} bytes per lane", target, "4 bytes per lane")
    lds = sum(int(count) * _BYTES[element] for count, element in _LDS.findall(text))
    if lds > target.shared_bytes:
        raise InternalError(f"{lds} bytes of LDS; {target} has {target.shared_bytes}")


def _without_types(name: str, known: frozenset[str]) -> str:
    """`raw.ptr.buffer.load.v4i32` -> `raw.ptr.buffer.load`: the longest known stem, or the shortest
    one."""
    words = name.split(".")
    while len(words) > 1 and ".".join(words) not in known and _TYPE_SUFFIX.fullmatch(words[-1]):
        words.pop()
    return ".".join(words)


def _cannot(what: str, target: Target, instead: str, more: str = "") -> InternalError:
    hint = f"emit {instead} instead" if instead else ""
    return InternalError(f"LLVM cannot select {what} for {target}{more}", hint=hint)
