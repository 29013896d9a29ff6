"""What must hold of the code of real kernels, found without a GPU: register pool, accumulators, TMA
boxes, shared memory, descriptors, waits, fences; and what the compiler does when the assembler
reports a fault."""

import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from form_help import SM90, Arrays, aligned, lowered, tile_func
from form_programs import Kernel, batched, block_scaled, grouped, product

import tilec
import tilec.language as T
from tilec.codegen import assemble, emit
from tilec.codegen.ptxas import run_ptxas, trouble
from tilec.ir.core import Func, walk
from tilec.ir.errors import CompileWarning, ResourceError
from tilec.ir.ops import Alloc, For, Scope, TmaLoad, Wgmma, WgmmaWait
from tilec.ir.schedule import Plan
from tilec.jit import attempts
from tilec.passes.utils.registers import at_launch
from tilec.support.tools import find_ptxas

M, N, K = T.dynamic("M, N, K")
SHARED_BYTES = 232_448  # what a block of sm_90 may have
MAX_BOX = 256
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas")


def zeros(dtype: Any, *shape: int) -> np.ndarray:
    return aligned(np.zeros(shape, dtype))


def halves(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [zeros(np.float16, *s) for s in shapes]


def named(names: str, arrays: list[np.ndarray]) -> Arrays:
    return dict(zip(names.split(), arrays))


FP8 = ml_dtypes.float8_e4m3fn
PROGRAMS: dict[str, tuple[Kernel, Arrays, dict[str, int]]] = {
    "NN": (product(False, False), named("A B C", halves((256, 128), (128, 256), (256, 256))), {}),
    "NT 64x256x64": (
        product(False, True),
        named("A B C", halves((256, 128), (256, 128), (256, 256))),
        {"BM": 64, "BN": 256, "BK": 64},
    ),
    "TN ragged": (product(True, False), named("A B C", halves((72, 80), (72, 136), (80, 136))), {}),
    "TT odd": (product(True, True), named("A B C", halves((7, 9), (13, 7), (9, 13))), {}),
    "batched": (batched, named("A W C", halves((3, 72, 40), (3, 40, 72), (3, 72, 72))), {}),
    "grouped": (
        grouped(True),
        {**named("A B C", halves((64, 40), (3, 72, 40), (64, 72))), "offsets": zeros(np.int32, 4)},
        {},
    ),
    "scaled": (
        block_scaled(True),
        {
            "A": zeros(FP8, 72, 256),
            "W": zeros(FP8, 144, 256),
            "SA": zeros(np.float32, 2, 72),
            "SW": zeros(np.float32, 2, 2),
            "C": zeros(ml_dtypes.bfloat16, 72, 144),
        },
        {},
    ),
}


def made(name: str) -> Iterator[tuple[Plan, Func]]:
    kernel, arrays, options = PROGRAMS[name]
    yield from lowered(tile_func(kernel, arrays, **options), SM90, some=True)


EACH = pytest.mark.parametrize("name", PROGRAMS)


@EACH
def test_lowered_code_keeps_to_the_machine(name: str) -> None:
    """The register pool, TMA boxes and shared memory of every plan."""
    for plan, done in made(name):
        threads = int(done.attrs["launch_threads"])
        scopes = [o for o in walk(done.body) if isinstance(o, Scope) and o.registers]
        taken = sum(o.registers * o.warps * 32 for o in scopes)
        assert taken <= at_launch(threads, SM90) * threads <= 65536, plan.name
        assert all(o.registers % 8 == 0 and 24 <= o.registers <= 240 for o in scopes)
        if scopes:
            assert sum(o.warps for o in scopes) * 32 == threads, "a warpgroup keeps its share"
        assert int(done.attrs["shared_bytes"]) <= SHARED_BYTES == SM90.shared_bytes
        for p in done.params:
            box = getattr(p.value.type, "box", ())
            assert all(1 <= e <= MAX_BOX for e in box), (plan.name, box)


@EACH
def test_products_per_block_of_k_and_their_waits(name: str) -> None:
    """wgmma: BK / 16 bytes x 2 instructions for each 64 rows, and waits only where they must be:
    one in the loop, one behind it."""
    kernel, arrays, options = PROGRAMS[name]
    for plan, done in made(name):
        if not plan.specialise or not any(isinstance(o, TmaLoad) for o in walk(done.body)):
            continue
        loops = [
            o
            for o in walk(done.body)
            if isinstance(o, For)
            and o.kind == "pipelined"
            and any(isinstance(x, WgmmaWait) for x in o.body.ops)
        ]
        assert len(loops) == 1
        inside = [o for o in walk(loops[0].body) if isinstance(o, WgmmaWait)]
        everywhere = [o for o in walk(done.body) if isinstance(o, WgmmaWait)]
        free = name != "scaled"  # there each block's product is read at once
        assert [o.pending for o in inside] == [1 if free else 0], plan.name
        assert len(everywhere) == 1 + free, plan.name
        text = emit(done, SM90)
        width = 32 if name == "scaled" else 16
        steps = {"scaled": 128}.get(name, options.get("BK", 32)) // width
        assert text.count("wgmma.mma_async") == steps, plan.name
        assert any(isinstance(o, Wgmma) for o in walk(done.body))


def main_loop(ptx: str) -> str:
    """The PTX between the label that a loop with wgmma begins at and the branch back to it."""
    at = ptx.index("wgmma.mma_async")
    start = max(m.start() for m in re.finditer(r"^\$L__BB\w+:", ptx, re.M) if m.start() < at)
    label = re.match(r"\$L__BB\w+", ptx[start:])
    assert label is not None
    back = [m.end() for m in re.finditer(r"bra(?:\.uni)?\s+(\$L__BB\w+);", ptx[at:])]
    assert back
    return ptx[start : at + back[0]]


@EACH
@needs_ptxas
def test_machine_code(name: str) -> None:
    """No spill, no advisory, no fence of memory in the main loop, masked descriptor addresses."""
    products = 0
    for plan, done in made(name):
        text = emit(done, SM90)
        code: Any = assemble(text, SM90)
        if plan.specialise and any(isinstance(o, TmaLoad) for o in walk(done.body)):
            assert not trouble(code.advisories), (plan.name, code.advisories)
            assert not code.spilled_bytes and not code.stack_bytes
            loop = main_loop(code.asm)
            assert "bar.sync" not in loop, plan.name
            if name != "scaled":  # there threads read scales from a ring
                assert "fence.proxy.async" not in loop, plan.name
        if "wgmma.mma_async" not in code.asm:
            continue
        products += 1
        loop = main_loop(code.asm)
        assert not re.search(r"\bmembar\b|\bfence\.(sc|acq_rel|proxy\.alias)", loop), plan.name
        # An address in a descriptor has 14 bits, in units of 16 bytes; both operands have one.
        assert len(re.findall(r"= and i32 %\S+, 16383\b", text)) >= 2, plan.name
        # LLVM leaves out the bits that alignment makes 0: 16320 for multiples of 1024 bytes.
        assert re.search(r"\bbfe\.u32\s.*, 4, 14;|\band\.b32\s.*, 16\d{3};", code.asm), plan.name
    assert products


# --- too much -------------------------------------------------------------------------------------


@tilec.kernel
def wide(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    stages: T.constexpr,
    threads: T.constexpr = 256,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])


@tilec.kernel
def gated(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    G: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BN: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, 128), threads=256) as (bx, by):
        A_s = T.alloc_shared((128, 32), "float16")
        B_s = T.alloc_shared((32, BN), "float16")
        G_s = T.alloc_shared((32, BN), "float16")
        up = T.alloc_fragment((128, BN), "float32")
        gate = T.alloc_fragment((128, BN), "float32")
        T.clear(up)
        T.clear(gate)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 128, k * 32], A_s)
            T.copy(B[k * 32, bx * BN], B_s)
            T.copy(G[k * 32, bx * BN], G_s)
            T.gemm(A_s, B_s, up)
            T.gemm(A_s, G_s, gate)
        for i, j in T.Parallel(128, BN):
            up[i, j] = up[i, j] * gate[i, j]
        T.copy(up, C[by * 128, bx * BN])


SQUARE = [tilec.spec((4096, 4096), "float16")] * 3


def test_too_much_shared_memory_names_buffers_and_what_fits() -> None:
    with pytest.raises(ResourceError) as caught:
        wide.compile(*SQUARE, target="cuda:sm_90a", BM=256, BN=128, BK=64, stages=6)
    text = str(caught.value)
    assert "A_s" in text and "B_s" in text and "232448" in text.replace("_", "").replace(",", "")
    assert "stages" in caught.value.hint and len(text.splitlines()) <= 12
    fits = re.search(r"num_stages=(\d+)", caught.value.hint)
    assert fits is not None
    wide.compile(*SQUARE, target="cuda:sm_90a", BM=256, BN=128, BK=64, stages=int(fits[1]))


def test_a_row_of_too_many_elements_names_how_many_fit() -> None:
    def compiled(count: int) -> tilec.CompiledKernel:
        @tilec.kernel
        def doubled(X: T.Tensor((count,), "float32"), Y: T.Tensor((count,), "float32")):
            with T.Kernel(1, threads=1024):
                x = T.alloc_fragment((count,), "float32")
                T.copy(X, x)
                for i in T.Parallel(count):
                    x[i] = x[i] * 2
                T.copy(x, Y)

        return doubled.compile(*[tilec.spec((count,), "float32")] * 2, target="cuda:sm_80")

    with pytest.raises(ResourceError) as caught:
        compiled(1 << 21)
    one, other = caught.value.hint.splitlines()
    assert one == "a tile of 32768 fits" and other.endswith("in place of 2097152, as wide as x is")
    assert not compiled(32768).resources.spilled_bytes


def test_accumulators_of_one_loop_count_together() -> None:
    """24 + accumulators <= the registers of a thread: two of 128x256 on 256 threads are 256."""
    specs = [tilec.spec((4096, 4096), "float16")] * 4
    with pytest.warns(CompileWarning) as caught:
        gated.compile(*specs, target="cuda:sm_90a", BN=256)
    text = str(caught[0].message)
    assert "up (128), gate (128), together 256 registers of each of 256 threads" in text
    assert "threads=512 fits" in text or "halve the tile" in text
    assert gated.compile(*specs, target="cuda:sm_90a", BN=128).resources.spilled_bytes in (0, None)


# --- what the assembler says ----------------------------------------------------------------------


def ptx_of(wanted: str) -> str:
    kernel, arrays, options = PROGRAMS["NT 64x256x64"]
    for plan, done in lowered(tile_func(kernel, arrays, **options), SM90):
        if plan.name == wanted:
            return assemble(emit(done, SM90), SM90).asm
    pytest.skip(f"no plan {wanted}")


@needs_ptxas
def test_a_register_split_that_ptxas_ignores_is_trouble() -> None:
    ptx = re.sub(r"(setmaxnreg\.inc\S*) \d+;", r"\1 144;", ptx_of("ping-pong"))
    ptxas = find_ptxas()
    assert "setmaxnreg.inc" in ptx and ptxas is not None
    assert "setmaxnreg" in trouble(run_ptxas(ptxas, ptx, "sm_90a").advisories)
    assert not trouble(run_ptxas(ptxas, ptx_of("ping-pong"), "sm_90a").advisories)


@needs_ptxas
def test_an_instruction_wider_than_the_registers_at_launch() -> None:
    """C7602: 512 threads start with 128 registers, m64n256 has 128 accumulators."""
    ptx = re.sub(r"\.maxntid 128", ".maxntid 512", ptx_of("plain"))
    ptxas = find_ptxas()
    assert ptxas is not None
    with pytest.raises(ResourceError, match=r"needs 15\d registers.*starts with 128"):
        run_ptxas(ptxas, ptx, "sm_90a")


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("ptxas info : (C7512) Potential Performance Loss: wgmma.mma_async are serialized", True),
        ("ptxas info : (C7507) 'setmaxnreg' ignored to maintain minimum registers", True),
        ("48 bytes of registers spilled to local memory", True),
        ("ptxas info : (C7519) warpgroup.arrive is injected", False),
        ("ptxas warning : something else", False),
    ],
)
def test_what_counts_as_trouble(line: str, bad: bool) -> None:
    assert bool(trouble(["ptxas warning : harmless", line])) == bad


def compiled_with(faulty: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """Which plan is kept if the assembler finds fault with the first so many, and which were
    tried."""
    tried: list[str] = []

    def judge(advisories: tuple[str, ...]) -> str:
        tried.append("")
        return "(C7512) serialized" if len(tried) <= faulty else ""

    monkeypatch.setattr(attempts, "trouble", judge)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    kernel = tilec.kernel(product(False, True))
    got = kernel.compile(*SQUARE, target="cuda:sm_90a", BM=64, BN=64, BK=32)
    text = got.stages["plan"]
    return text.splitlines()[0].removeprefix("kept: "), re.findall(r"tried: (.*?):", text)


def test_a_plan_with_a_fault_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = compiled_with(0, monkeypatch)
    second, tried = compiled_with(1, monkeypatch)
    assert second != first and tried[0] == first
    _, tried = compiled_with(2, monkeypatch)
    assert len(tried) >= 2


def test_where_all_have_faults_the_least_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = compiled_with(0, monkeypatch)
    kept, tried = compiled_with(1000, monkeypatch)
    assert kept == first and len(tried) >= 2


def test_buffers_of_the_plan_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resources are those of the code that was kept."""
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    got = wide.compile(*SQUARE, target="cuda:sm_90a", BM=128, BN=128, BK=64, stages=3)
    stages, rest = divmod(got.resources.buffers["A_s"], 128 * 64 * 2)
    assert stages >= 3 and not rest and f"stages={stages}" in got.stages["plan"].split("\n")[0]
    assert got.resources.shared_bytes <= SHARED_BYTES
    kernel, arrays, options = PROGRAMS["NN"]
    for _, done in lowered(tile_func(kernel, arrays, **options), SM90):
        assert all(
            o.address >= 0
            for o in walk(done.body)
            if isinstance(o, Alloc) and o.type.space == "shared"
        )


@needs_ptxas
def test_sass_of_the_main_loop() -> None:
    """One HGMMA for each 16 columns of K, no MEMBAR between them, no local memory."""
    kernel = tilec.kernel(product(False, True))
    got = kernel.compile(*SQUARE, target="cuda:sm_90a", BM=64, BN=256, BK=64)
    if "sass" not in got.stages:
        pytest.skip("needs nvdisasm or cuobjdump")
    sass = got.stages["sass"]
    assert len(re.findall(r"\bHGMMA\b", sass)) == 64 // 16
    assert not re.search(r"\bMEMBAR\b", sass[sass.index("HGMMA") : sass.rindex("HGMMA")])
    assert not re.search(r"\b(STL|LDL)\b", sass)
