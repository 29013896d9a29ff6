"""Targets as values: what a machine is, in the numbers the passes ask for.

A pass never compares a target's name: it asks for a feature (`target.has("tma")`) or a number
(`target.shared_bytes`). Everything a vendor's manual states about an instruction lives in a row
(`tilec.ir.instr`), not here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tilec.ir.errors import TargetError, nearest, shown

CACHE_LINE = 128  # bytes, of the L2 cache of every GPU here
SECTOR = 32  # bytes of a line that come at once


@dataclass(frozen=True)
class Speeds:
    """What a machine does per second, for predictions; each figure is what kernels reach under
    load, not the data sheet's.

    `clock` in Hz; `dram` bytes/s of the whole chip, `l2_bytes` the size of its L2 cache; per
    multiprocessor and clock: `l2` bytes from the L2 cache, `shared` bytes that matrix instructions
    read from shared memory, `vector` multiply-adds and the like, `special` exponentials, roots and
    reciprocals, `products` flops of matrix instructions, by the feature that a row needs and the
    bits of its inputs ("wgmma.16"), `fill` bytes into shared memory from the cache, whoever asked
    for them, `outside` bytes of zeros there for what a tile has beyond its tensor, `port` bytes of
    what comes from the cache once for `neighbours` multiprocessors, which blocks that follow one
    another run on, `store` bytes to the cache while nothing is loaded. `latency`: seconds from
    asking for a tile to having it. `launch`: seconds that an empty kernel takes."""

    clock: float = 2e9
    dram: float = 4e10
    l2_bytes: float = 32e6
    l2: float = 32.0
    shared: float = 64.0
    vector: float = 16.0
    special: float = 2.0
    products: tuple[tuple[str, float], ...] = ()
    fill: float = 128.0
    outside: float = 25.0
    port: float = math.inf
    neighbours: int = 1
    store: float = math.inf
    latency: float = 1e-7
    launch: float = 5e-6

    def product_rate(self, feature: str, bits: int) -> float:
        """Flops per clock of one multiprocessor's matrix instructions; those of plain
        multiply-adds where it has none such."""
        return dict(self.products).get(f"{feature}.{bits}", 2 * self.vector)


def _tensor_cores(
    mma: float, wgmma: float = 0.0, fp8: bool = True
) -> tuple[tuple[str, float], ...]:
    """The flops of NVIDIA's instructions by those of 16 bits: half as many bits take half the time,
    and so does a compressed A. `fp8`: `mma` multiplies float8 as fast as int8."""
    dense = [("mma", bits, mma) for bits in (8, 16, 32)] + [("mma_fp8", 8, mma)] * fp8
    dense += [("wgmma", bits, wgmma) for bits in (8, 16, 32)] * bool(wgmma)
    rates = [(name, bits, rate * 16 / bits) for name, bits, rate in dense]
    rates += [(name.replace("mma", "mma_sp"), bits, 2 * rate) for name, bits, rate in rates]
    return tuple((f"{name}.{bits}", rate) for name, bits, rate in rates)


# NVIDIA H200: 989 TFLOP/s of dense float16 at 1.83 GHz is 4096 a clock; long products run at about
# 1.45 GHz (power). TMA writes 128 bytes of shared memory a clock, and about 25 of zeros: 16 rows in
# a tile of 256 (docs/decisions.md, "Bytes outside of a tensor are not free"). A100: 312 TFLOP/s at
# 1.41 GHz. A40: 150 TFLOP/s at 1.74 GHz. L40S: 362 TFLOP/s at 2.52 GHz. MI250X: 383 TFLOP/s of
# two dies at 1.7 GHz. MI300X: 1307 TFLOP/s at 2.1 GHz. RX 7900 XTX: 123 TFLOP/s at 2.5 GHz.
_H200 = Speeds(
    clock=1.45e9, dram=4.1e12, l2_bytes=50e6, l2=84.0, shared=105.0, vector=128.0, special=16.0,
    products=(*_tensor_cores(1900.0, 4096.0), ("mma_f64.64", 256.0), ("mma.64", 128.0)),
    port=42.0, neighbours=8, store=21.0, latency=0.7e-6, launch=1.2e-6,
)  # fmt: skip
_A100 = Speeds(
    clock=1.3e9, dram=1.4e12, l2_bytes=40e6, l2=40.0, shared=128.0, vector=64.0, special=16.0,
    products=_tensor_cores(2048.0, fp8=False), latency=0.8e-6, launch=2.5e-6,
)  # fmt: skip
_A40 = replace(
    _A100, clock=1.6e9, dram=0.6e12, l2_bytes=6e6, l2=32.0, vector=128.0,
    products=_tensor_cores(1024.0, fp8=False),
)  # fmt: skip
_L40S = replace(_A40, clock=2.2e9, dram=0.76e12, l2_bytes=96e6, products=_tensor_cores(1024.0))
_MI250X = Speeds(  # one of the two dies, a device of its own
    clock=1.6e9, dram=1.3e12, l2_bytes=8e6, shared=128.0, vector=64.0, special=16.0,
    products=(
        ("mfma_cdna2.8", 1024.0), ("mfma.16", 1024.0), ("mfma.32", 256.0), ("mfma.64", 256.0),
    ),
    latency=1.0e-6, launch=4.0e-6,
)  # fmt: skip
_MI300X = Speeds(
    clock=1.8e9, dram=4.0e12, l2=40.0, shared=128.0, vector=128.0, special=16.0,
    products=(
        ("mfma_cdna3.8", 4096.0), ("mfma.16", 2048.0), ("mfma_xf32.32", 1024.0),
        ("mfma.32", 256.0),
    ),
    latency=1.2e-6, launch=4.0e-6,
)  # fmt: skip
_MI355X = replace(
    _MI300X, clock=2.0e9, dram=6.0e12,
    products=(
        ("mfma_cdna4.8", 8192.0), ("mfma_cdna4.16", 4096.0),
        ("mfma_cdna3.8", 4096.0), ("mfma.16", 2048.0), ("mfma.32", 256.0), ("mfma.64", 128.0),
    ),
)  # fmt: skip
_RX7900 = Speeds(  # of two compute units that share blocks, a multiprocessor of HIP's
    clock=2.2e9, dram=0.8e12, l2_bytes=96e6, l2=64.0, shared=256.0, vector=128.0, special=32.0,
    products=(("wmma.8", 1024.0), ("wmma.16", 1024.0)), latency=0.8e-6, launch=4.0e-6,
)  # fmt: skip


@dataclass(frozen=True)
class Residency:
    """What one multiprocessor (compute unit) holds at once: `threads`, `blocks`, bytes of shared
    memory, `reserved` ones of them for each block; `unit`: registers are given out to warps in
    multiples of it. CUDA C++ Programming Guide, "Compute Capabilities"; AMD CDNA3 and CDNA4
    instruction sets, section 3.6."""

    threads: int
    blocks: int
    shared_bytes: int
    reserved: int
    unit: int


@dataclass(frozen=True)
class Target:
    """One machine tilec compiles for.

    `warp_size` is the lanes that execute together (a wave on AMD); `shared_bytes` the shared
    memory (LDS) one block may use, `local_bytes` the memory of its own that one thread may use (0:
    no limit is known); `registers` the 32-bit registers of one multiprocessor that
    blocks share; `multiprocessors` a default for grids of persistent kernels when no device is at
    hand; `grid_limits` the most blocks of a grid in each dimension, `grid_blocks` in all;
    `residency` how many blocks share one (None: unknown); `speeds` what predictions count
    with; `llvm_features` what LLVM's code generator is told besides `arch`."""

    name: str
    kind: str
    arch: str
    warp_size: int = 32
    shared_bytes: int = 0
    local_bytes: int = 0
    registers: int = 65536
    max_registers_per_thread: int = 255
    max_threads: int = 1024
    multiprocessors: int = 1
    grid_limits: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    grid_blocks: int = 2**63 - 1
    fragment_registers: int = 0
    features: frozenset[str] = field(default_factory=frozenset)
    residency: Residency | None = None
    speeds: Speeds = Speeds()
    llvm_features: str = ""

    def has(self, feature: str) -> bool:
        """Whether the machine has `feature`: instructions ("mma", "mma_fp8", "mma_sp", "ldmatrix",
        "stmatrix", "cp_async", "wgmma", "tma", "mbarrier", "setmaxnreg", "cluster"; "mfma",
        "mfma_cdna2" (what CDNA3 has dropped), "mfma_cdna3", "mfma_xf32", "mfma_cdna4", "wmma";
        "lds_dma_128": loads to LDS of more than 4 bytes per lane; "float8": conversions), or

        - "float8_fnuz": its float8 has no infinities and no negative zero (else OCP's);
        - "global_barrier": a block's barrier orders its accesses to global memory too;
        - "printf": kernels can print;
        - "inline_asm": tilec finds an assembler for inline assembly;
        - "min_blocks": its assembler takes the least number of blocks that share a multiprocessor;
        - "orders_by_registers": its assembler moves loads up no further than registers allow;
        - "slow_conversions": integers become floats in a unit of its own, which is slow;
        - "red_vector": it adds vectors of float32 in global memory, each element atomically;
        - "pdl": a launch may begin before the one in front of it has ended (`tilec.ir.clusters`).
        """
        return feature in self.features

    def __str__(self) -> str:
        return self.name


_CUDA = frozenset({"printf", "inline_asm", "global_barrier", "min_blocks", "orders_by_registers"})
_CUDA |= {"slow_conversions"}
_SM80 = _CUDA | {"mma", "mma_sp", "ldmatrix", "cp_async"}
_SM89 = _SM80 | {"mma_fp8", "mma_sp_fp8", "float8"}
_SM90 = _SM89 | {"stmatrix", "tma", "wgmma", "mbarrier", "setmaxnreg", "cluster", "pdl"}
_SM90 |= {"red_vector", "wgmma_sp", "mma_f64"}
_CDNA3 = frozenset({"mfma", "mfma_cdna3", "float8"})


def _cuda(
    arch: str, features: frozenset[str], multiprocessors: int, speeds: Speeds, ptx: int,
    shared_bytes: int, threads: int, blocks: int,
) -> Target:  # fmt: skip
    """Of what is shared by so many threads and blocks, each block keeps 1 KB. CUDA C++ Programming
    Guide, "Technical Specifications per Compute Capability". `ptx` is the oldest that has all of an
    architecture's instructions: the newest drivers are not needed."""
    return Target(
        f"cuda:{arch}", "cuda", arch, 32, shared_bytes, 512 << 10,
        multiprocessors=multiprocessors, features=features, speeds=speeds,
        residency=Residency(threads, blocks, shared_bytes + 1024, 1024, 256),
        llvm_features=f"+ptx{ptx}",
    )  # fmt: skip


def _hip(
    arch: str, features: frozenset[str], multiprocessors: int, speeds: Speeds,
    shared_bytes: int = 65_536, together: int = 0,
    warp_size: int = 64, registers: int = 131_072, most: int = 512,
) -> Target:  # fmt: skip
    """`together`: bytes that the blocks of a multiprocessor share, where one may not have all;
    `most`: registers of a thread. Memory of a thread's own is the largest frame that LLVM makes for
    a wave of 64, 131,056 bytes, less some for what is spilled. HIP counts blocks times threads in
    32 bits in each dimension; blocks have at most 1024 threads, all in x."""
    return Target(
        f"hip:{arch}", "hip", arch, warp_size, shared_bytes, 127 << 10, registers, most,
        multiprocessors=multiprocessors, features=features, speeds=speeds,
        residency=Residency(2048, 32, together or shared_bytes, 0, 512),
        grid_limits=(2**32 // 1024 - 1, 65535, 65535), fragment_registers=192,
    )  # fmt: skip


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        _cuda("sm_80", _SM80, 108, _A100, 70, 166_912, 2048, 32),
        _cuda("sm_86", _SM80, 84, _A40, 71, 101_376, 1536, 16),
        _cuda("sm_89", _SM89, 142, _L40S, 84, 101_376, 1536, 24),
        _cuda("sm_90a", _SM90, 132, _H200, 84, 232_448, 2048, 32),
        _hip("gfx90a", frozenset({"mfma", "mfma_cdna2"}), 104, _MI250X),
        _hip("gfx942", _CDNA3 | {"mfma_xf32", "float8_fnuz"}, 304, _MI300X),
        _hip("gfx950", _CDNA3 | {"mfma_cdna4", "lds_dma_128"}, 256, _MI355X, 163_840),
        _hip(
            "gfx1100", frozenset({"wmma"}), 48, _RX7900, together=131_072,
            warp_size=32, registers=196_608, most=256,
        ),
        Target(
            "cpu", "cpu", "host", 1, 1 << 20, max_threads=1, grid_limits=(2**31 - 1,) * 3,
            grid_blocks=2**31 - 1, features=frozenset({"printf", "inline_asm"}),
        ),
    )
}  # fmt: skip

# What other systems call a vendor or a machine.
_OTHER_NAMES = {
    **dict.fromkeys(("gpu", "nvidia", "nvptx"), "cuda"),
    **dict.fromkeys(("rocm", "amd", "amdgpu"), "hip"),
    **dict.fromkeys(("h100", "h200", "hopper", "cuda:sm_90", "sm_90"), "cuda:sm_90a"),
    **dict.fromkeys(("a100", "ampere", "sm_80"), "cuda:sm_80"),
    **dict.fromkeys(("a10", "a40", "a6000", "sm_86"), "cuda:sm_86"),
    **dict.fromkeys(("l4", "l40", "l40s", "ada", "sm_89"), "cuda:sm_89"),
    **dict.fromkeys(("mi200", "mi210", "mi250", "mi250x", "gfx90a"), "hip:gfx90a"),
    **dict.fromkeys(("mi300", "mi300x", "gfx942"), "hip:gfx942"),
    **dict.fromkeys(("rx7900", "rdna3", "gfx1100"), "hip:gfx1100"),
    **dict.fromkeys(("mi350", "mi350x", "mi355x", "gfx950"), "hip:gfx950"),
    **dict.fromkeys(("x86", "host", "llvm", "c"), "cpu"),
}
PROPOSED = {"cuda": "cuda:sm_90a", "hip": "hip:gfx942"}  # of a vendor's machines, by messages


def meant_target(name: object) -> str:
    """The target or vendor that others call `name`; "" where none is known."""
    return _OTHER_NAMES.get(name.lower(), "") if isinstance(name, str) else ""


def cuda_target(major: int, minor: int) -> Target | None:
    """The target that a CUDA device of this compute capability runs; None where there is none.
    Code for sm_80 runs on all of 8.x, code for sm_90a on 9.0 alone."""
    own = {(8, 6): "cuda:sm_86", (8, 9): "cuda:sm_89", (9, 0): "cuda:sm_90a"}
    return TARGETS.get(own.get((major, minor), "cuda:sm_80" if major == 8 else ""))


def find_target(name: str) -> Target:
    """The target called `name`, one of `TARGETS`.

    Raises TargetError for a name that is unknown, with the nearest one that exists."""
    if isinstance(name, str) and name in TARGETS:
        return TARGETS[name]
    near = meant_target(name) or nearest(shown(name).strip("'"), (*TARGETS, "cuda", "hip"))
    also = f"; did you mean {near!r}?" if near else ""
    raise TargetError(
        f"unknown target {shown(name)}{also} (targets: {', '.join(TARGETS)})",
        hint=f'write target="{near or "cuda:sm_90a"}", or leave target out',
    )
