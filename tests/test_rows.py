"""Hardware rows: operand maps against the vendors' formulas, semantics, and templates against the
assemblers."""

import shutil
import subprocess

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from instruction_rows import MEMORY_INSTRUCTIONS, SYNC_INSTRUCTIONS, registers_of, tile_of

from tilec.ir import types as dt
from tilec.ir.errors import InternalError
from tilec.ir.instr import (
    MATRIX_INSTRUCTIONS,
    PTX_FOR,
    AmdInstruction,
    Asm,
    MfmaInstruction,
    MmaInstruction,
    Operands,
    SimtInstruction,
    SparseMmaInstruction,
    WgmmaInstruction,
    WmmaInstruction,
    find_instruction,
    instructions_of,
    memory,
    sync,
    wgmma_wait,
)
from tilec.ir.instr.machine import nothing
from tilec.ir.layout import Layout
from tilec.target import TARGETS, find_target

NUMPY = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "tf32": np.float32,
    "f64": np.float64, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16,
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


# --- where operands live: the formulas as the manuals write them ---


def mma_16_bit(lane, which, i):
    """PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" (.f16, .bf16)."""
    group, thread = lane >> 2, lane % 4
    if which == "a":
        row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
        return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)
    if which == "b":
        return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def mma_tf32(lane, which, i):
    """PTX ISA, "Matrix Fragments for mma.m16n8k8" (.tf32)."""
    group, thread = lane >> 2, lane % 4
    if which == "a":
        return (group if i in (0, 2) else group + 8), (thread if i < 2 else thread + 4)
    if which == "b":
        return (thread if i == 0 else thread + 4), group
    return mma_16_bit(lane, "c", i)


def mma_8_bit(lane, which, i):
    """PTX ISA, "Matrix Fragments for mma.m16n8k32" (.s8, .u8, .e4m3, .e5m2)."""
    group, thread = lane >> 2, lane % 4
    if which == "a":
        row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
        return row, thread * 4 + (i & 3) + (16 if i >= 8 else 0)
    if which == "b":
        return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group
    return mma_16_bit(lane, "c", i)


def mma_half_k(bits, lane, which, i):
    """PTX ISA, "Matrix Fragments for" mma.m16n8k8 (.f16, .bf16), mma.m16n8k4 (.tf32) and
    mma.m16n8k16 (.s8, .u8): registers a0 (row groupID) and a1 (row groupID + 8), b0."""
    group, thread = lane >> 2, lane % 4
    each = 32 // bits
    if which == "a":
        return (group if i < each else group + 8), thread * each + i % each
    if which == "b":
        return thread * each + i, group
    return mma_16_bit(lane, "c", i)


def mma_sp(bits, lane, which, i):
    """PTX ISA, "Matrix Fragments for sparse mma.m16n8k32" (.f16, .bf16), "…m16n8k16" (.tf32) and
    "…m16n8k64" (.s8, .u8, .e4m3, .e5m2): A as that of the dense instruction of half the depth, B of
    four registers."""
    group, thread = lane >> 2, lane % 4
    each = 32 // bits
    if which == "b":
        return thread * each + i % each + 4 * each * (i // each), group
    return {16: mma_16_bit, 32: mma_tf32, 8: mma_8_bit}[bits](lane, which, i)


def mma_f64(lane, which, i):
    """PTX ISA, "Matrix Fragments for mma.m8n8k4" (.f64)."""
    group, thread = lane >> 2, lane % 4
    if which == "a":
        return group, thread
    if which == "b":
        return thread, group
    return group, thread * 2 + (i & 1)


def mma_wide_f64(lane, which, i):
    """PTX ISA, "Matrix Fragments for mma.m16n8k4, mma.m16n8k8, and mma.m16n8k16" (.f64): rows
    groupID for even i and groupID + 8 for odd ones, (i / 2) * 4 + threadID_in_group along K."""
    group, thread = lane >> 2, lane % 4
    if which == "a":
        return group + 8 * (i % 2), thread + 4 * (i // 2)
    if which == "b":
        return thread + 4 * i, group
    return mma_16_bit(lane, "c", i)


def wgmma(bits, warp, lane, which, i):
    """PTX ISA, "Register Fragments" of wgmma.mma_async.m64nNk16, .m64nNk8 and .m64nNk32: A as that
    of mma for every warp; D, whatever its type."""
    if which == "a":
        row, col = {16: mma_16_bit, 32: mma_tf32, 8: mma_8_bit}[bits](lane, "a", i)
        return 16 * warp + row, col
    row = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
    return row, 8 * (i // 4) + (lane % 4) * 2 + i % 2


def mfma(size, k, double, lane, which, i):
    """AMD matrix instruction calculator, V_MFMA_F32_{32X32X8,16X16X16}_F16,
    V_MFMA_I32_{32X32X16,16X16X32}_I8, V_MFMA_F32_{32X32X4,16X16X8}_XF32, …_F32, and
    V_MFMA_F64_16X16X4_F64."""
    per_lane = k * size // 64
    if which == "a":
        return lane % size, per_lane * (lane // size) + i
    if which == "b":
        return per_lane * (lane // size) + i, lane % size
    if double:
        return 4 * i + lane // 16, lane % 16
    if size == 32:
        return 8 * (i // 4) + 4 * (lane // 32) + i % 4, lane % 32
    return 4 * (lane // 16) + i, lane % 16


def check_map(layout, formula, replicas=1):
    assert layout.size("reg") and layout.replicas("reg") == 1
    assert layout.replicas("lane") == replicas
    table = layout.table("reg", "lane", "warp")
    for reg in range(layout.size("reg")):
        for lane in range(layout.size("lane")):
            for warp in range(layout.size("warp")):
                want = formula(warp, lane, reg)
                assert tuple(table[reg, lane, warp]) == want, (layout, reg, lane, warp)


def wmma(lane, which, i):
    """RDNA3 ISA, "Wave Matrix Multiply Accumulate": lanes 16 to 31 hold A and B again."""
    if which == "c":
        return 2 * i + lane // 16, lane % 16
    return (lane % 16, i) if which == "a" else (i, lane % 16)


def formula_of(row, which):
    match row:
        case WgmmaInstruction():
            return lambda w, l, i: wgmma(row.a_dtype.bits, w, l, which, i)
        case MfmaInstruction():
            return lambda w, l, i: mfma(row.m, row.k, row.a_dtype.bits == 64, l, which, i)
        case WmmaInstruction():
            return lambda w, l, i: wmma(l, which, i)
        case SparseMmaInstruction():
            return lambda w, l, i: mma_sp(row.a_dtype.bits, l, which, i)
        case MmaInstruction():
            bits = row.a_dtype.bits
            if bits == 64:
                return lambda w, l, i: (mma_f64 if row.m == 8 else mma_wide_f64)(l, which, i)
            if row.k * bits == 128:
                return lambda w, l, i: mma_half_k(bits, l, which, i)
            f = {16: mma_16_bit, 32: mma_tf32, 8: mma_8_bit}[bits]
            return lambda w, l, i: f(l, which, i)


SOME_ROWS = [
    r
    for name, r in MATRIX_INSTRUCTIONS.items()
    if not isinstance(r, SimtInstruction)
    and not (isinstance(r, WgmmaInstruction) and r.n not in (8, 24, 176, 256))
]


def register_bits(row):
    """Bits of one operand of the instruction as it is spelled: a 32-bit register (64 of float64),
    or all that a lane of AMD's holds."""
    if isinstance(row, AmdInstruction):
        layouts, dtypes = (row.a, row.b, row.c), (row.a_dtype, row.b_dtype, row.c_dtype)
        return [layout.size("reg") * t.bits for layout, t in zip(layouts, dtypes)]
    return [64 if row.a_dtype.bits == 64 else 32] * 3


@pytest.mark.parametrize("row", SOME_ROWS, ids=lambda r: r.name)
def test_operands_live_where_the_manual_says(row):
    replicas = 2 if isinstance(row, WmmaInstruction) else 1
    check_map(row.a, formula_of(row, "a"), replicas)
    check_map(row.c, formula_of(row, "c"))
    assert row.registers == tuple(
        layout.size("reg") * dtype.bits // width
        for layout, dtype, width in zip(
            (row.a, row.b, row.c), (row.a_dtype, row.b_dtype, row.c_dtype), register_bits(row)
        )
    )
    if not isinstance(row, WgmmaInstruction):
        check_map(row.b, formula_of(row, "b"), replicas)


FLOAT8, INT8 = ("e4m3", "e5m2"), ("i8", "u8")


@pytest.mark.parametrize(
    ("k", "a", "b", "sums"),
    [
        (16, "f16", "f16", ("f32", "f16")),
        (16, "bf16", "bf16", ("f32",)),
        (8, "tf32", "tf32", ("f32",)),
        *((32, a, b, ("f32", "f16")) for a in FLOAT8 for b in FLOAT8),
    ],
)
def test_every_wgmma_width_has_its_rows(k, a, b, sums):
    for n in range(8, 257, 8):
        for c in sums:
            inputs = a if a == b else f"{a}x{b}"
            row = find_instruction(f"wgmma.m64n{n}k{k}.{inputs}" + (".f16" if c == "f16" else ""))
            assert (row.m, row.n, row.k, row.warps, row.c_dtype.short) == (64, n, k, 4, c)
            assert row.registers == (4, n // 8 * 2, n // 2 if c == "f32" else n // 4)


def test_widths_of_wgmma_with_integers():
    """PTX ISA, "wgmma.mma_async", table of shapes: .m64nNk32 of .u8 and .s8."""
    legal = {8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256}
    for a in INT8:
        for b in INT8:
            inputs = a if a == b else f"{a}x{b}"
            found = {
                n for n in range(8, 257, 8) if f"wgmma.m64n{n}k32.{inputs}" in MATRIX_INSTRUCTIONS
            }
            assert found == legal


def test_rows_are_found_by_their_dtypes():
    for dtypes, names in (
        ((dt.FLOAT16, dt.FLOAT16, dt.FLOAT16), {"wgmma", "mma"}),
        ((dt.INT8, dt.UINT8, dt.INT32), {"wgmma", "mma", "wmma"}),
        ((dt.INT8, dt.INT8, dt.INT32), {"wgmma", "mma", "mfma", "wmma"}),
        ((dt.FLOAT8_E5M2, dt.FLOAT8_E4M3, dt.FLOAT32), {"wgmma", "mma", "mfma"}),
        ((dt.FLOAT32, dt.FLOAT32, dt.FLOAT32), {"mfma"}),
        ((dt.TFLOAT32, dt.TFLOAT32, dt.FLOAT32), {"wgmma", "mma", "mfma"}),
        ((dt.FLOAT64, dt.FLOAT64, dt.FLOAT64), {"mma", "mfma"}),
        ((dt.FLOAT16, dt.BFLOAT16, dt.FLOAT32), set()),
    ):
        found = instructions_of(*dtypes)
        assert {r.name.split(".")[0] for r in found} == names
        assert all((r.a_dtype, r.b_dtype, r.c_dtype) == dtypes for r in found)


def test_only_float8_on_hopper_has_a_coarse_sum():
    coarse = [r for r in MATRIX_INSTRUCTIONS.values() if r.coarse_sum]
    assert coarse and all(isinstance(r, WgmmaInstruction) and r.a_dtype.bits == 8 for r in coarse)
    assert all(r.c_dtype.short == "f32" for r in coarse)


def test_every_feature_belongs_to_a_target():
    known = set().union(*(t.features for t in TARGETS.values())) | {""}
    rows = [*MATRIX_INSTRUCTIONS.values(), *MEMORY_INSTRUCTIONS, *SYNC_INSTRUCTIONS]
    assert {r.feature for r in rows} <= known


SIMT = [r for r in MATRIX_INSTRUCTIONS.values() if isinstance(r, SimtInstruction)]


@pytest.mark.parametrize("row", [*SOME_ROWS, *SIMT], ids=lambda r: r.name)
def test_meaning_is_the_product(row):
    rng = np.random.default_rng(row.m * 1000 + row.n)
    a_type, b_type, c_type = (NUMPY[t.short] for t in (row.a_dtype, row.b_dtype, row.c_dtype))
    whole = row.c_dtype.is_int
    scale = 3 if whole else 1

    def draw(shape, dtype):
        got = rng.uniform(0 if "u" in np.dtype(dtype).kind else -scale, scale, shape)
        return (np.rint(got) if whole else got).astype(dtype)

    a, b, c = (
        draw((row.m, row.k), a_type),
        draw((row.k, row.n), b_type),
        draw((row.m, row.n), c_type),
    )
    got = row.semantics(a, b, c)
    want = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    assert got.dtype == c.dtype and got.shape == c.shape
    loose = {"tf32": 1e-2, "f16": 4e-3, "bf16": 2e-2}
    rounding = row.a_dtype.short if row.a_dtype.short == "tf32" else row.c_dtype.short
    bound = 0 if whole else loose.get(rounding, 1e-5) * row.k**0.5
    assert np.abs(got.astype(np.float64) - want).max() <= bound


def test_tf32_drops_the_low_bits_of_its_inputs():
    row = find_instruction("mma.m16n8k8.tf32")
    a, b = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32)
    a[0, 0], b[0, 0] = 1 + 2**-12, 1 + 2**-10
    assert row.semantics(a, b, np.zeros((16, 8), np.float32))[0, 0] == np.float32(1 + 2**-10)


def test_registers_and_tiles_are_inverse():
    rng = np.random.default_rng(1)
    for row in SOME_ROWS:
        for layout in (row.a, row.b, row.c):
            tile = rng.standard_normal(layout.shape)
            registers = registers_of(layout, tile)
            assert registers.shape == tuple(layout.size(o) for o in ("reg", "lane", "warp"))
            assert np.array_equal(tile_of(layout, registers), tile)


# --- ldmatrix, stmatrix ---


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_moves_distribute_as_the_manual_says(count, transposed):
    """PTX ISA, ldmatrix: "each thread receives a fragment of a row"; .trans transposes each
    matrix."""
    rng = np.random.default_rng(count)
    rows = rng.integers(0, 1 << 16, (8 * count, 8)).astype(np.uint16)
    load, store = memory.ldmatrix(count, transposed), memory.stmatrix(count, transposed)
    got = load.semantics(rows)
    assert got.shape == (2 * count, 32)
    for i in range(count):
        matrix = rows[8 * i : 8 * i + 8]
        matrix = matrix.T if transposed else matrix
        for lane in range(32):
            assert got[2 * i, lane] == matrix[lane // 4, 2 * (lane % 4)]
            assert got[2 * i + 1, lane] == matrix[lane // 4, 2 * (lane % 4) + 1]
    assert np.array_equal(store.inverse(got), rows)
    assert load.unit_bits == 16


# --- the operand counter ---


def test_operands_are_numbered_outputs_inputs_ties():
    x = Operands()
    d = x.outputs("f", 2)
    a = x.input("l")
    x.tie_all()
    assert (d, a) == (["$0", "$1"], "$2")
    asm = x.asm(f"foo {d[0]}, {d[1]}, {a};", nothing)
    assert asm == Asm(
        "foo $0, $1, $2;",
        "=f,=f,l,0,1,~{memory}",
        ("i64", "float", "float"),
        ("float", "float"),
        semantics=nothing,
    )


@pytest.mark.parametrize("template", ["foo $0;", "foo $0, $1, $2;", "foo $0, $10;"])
def test_a_template_that_disagrees_with_its_operands_is_refused(template):
    x = Operands()
    x.outputs("r", 1)
    x.input("r")
    with pytest.raises(InternalError, match="asm operands"):
        x.asm(template, nothing)


def test_outputs_after_inputs_are_refused():
    x = Operands()
    x.input("r")
    with pytest.raises(InternalError, match="after an input"):
        x.outputs("f", 1)


def test_an_unknown_row_names_its_neighbour():
    with pytest.raises(InternalError, match="did you mean 'mma.m16n8k16.f16'"):
        find_instruction("mma.m16n8k16.fp16")


def test_wgmma_steps_are_counted():
    with pytest.raises(InternalError, match="3 steps of a, 2 times 2 of b"):
        find_instruction("wgmma.m64n8k16.f16").product(2, (0, 2, 4), (0, 2))


@pytest.mark.parametrize("registers", [20, 30, 264])
def test_setmaxnreg_knows_its_range(registers):
    with pytest.raises(InternalError, match="multiples of 8"):
        sync.setmaxnreg(registers, True)


def test_wgmma_product_writes_its_steps_in_order():
    row = find_instruction("wgmma.m64n8k16.bf16")
    text = row.product(2, (0, 2, 512, 514), (0, 128), accumulate="if", b_transposed=True).template
    parts = [p.strip() for p in text.strip("{} ").split(";")]
    adds = [p for p in parts if p.startswith("add.s64")]
    assert adds == [
        "add.s64 db, $9, 0", "add.s64 da, $8, 0", "add.s64 da, $8, 512",
        "add.s64 db, $9, 128", "add.s64 da, $8, 2", "add.s64 da, $8, 514",
    ]  # fmt: skip
    scales = [p.split(", db, ")[1].split(",")[0] for p in parts if p.startswith("wgmma.mma")]
    assert scales == ["p", "p", "1", "1"]
    assert all(p.endswith("1, 1, 0, 1") for p in parts if p.startswith("wgmma.mma"))
    assert parts.index("wgmma.fence.sync.aligned") < parts.index("add.s64 db, $9, 0")
    assert parts[-2] == "wgmma.commit_group.sync.aligned"


# --- the assemblers take the templates ---


def kernel(name, asms):
    """A kernel that runs these pieces one after the other. A piece whose inputs end with the
    results of the one before gets them; every other input is read from memory (a parameter, for a
    pointer); the last results are stored."""
    lines, results, reads = [], [], 0
    for n, asm in enumerate(asms):
        types = [t for t, _ in results]
        fed = results if types and types == list(asm.inputs[-len(types) :]) else []
        args = []
        for kind in asm.inputs[: len(asm.inputs) - len(fed)]:
            if kind == "ptr":
                args.append("ptr %map")
                continue
            lines += [
                f"  %q{reads} = getelementptr i64, ptr addrspace(1) %in, i32 {reads}",
                f"  %p{reads} = load volatile {kind}, ptr addrspace(1) %q{reads}",
            ]
            args.append(f"{kind} %p{reads}")
            reads += 1
        args += [f"{t} {v}" for t, v in fed]
        struct = "{ " + ", ".join(asm.outputs) + " }"
        result = struct if len(asm.outputs) > 1 else asm.outputs[0] if asm.outputs else "void"
        words = f'asm sideeffect "{asm.template}", "{asm.constraints}"'
        call = f"call {result} {words}({', '.join(args)}) #1"
        lines.append(f"  %r{n} = {call}" if asm.outputs else f"  {call}")
        results = [(t, f"%r{n}") for t in asm.outputs]
        if len(results) > 1:
            for i in range(len(results)):
                lines.append(f"  %r{n}_{i} = extractvalue {struct} %r{n}, {i}")
            results = [(t, f"%r{n}_{i}") for i, t in enumerate(asm.outputs)]
    for i, (t, v) in enumerate(results):
        lines.append(f"  %o{i} = getelementptr i32, ptr addrspace(1) %out, i32 {i}")
        lines.append(f"  store {t} {v}, ptr addrspace(1) %o{i}, align 4")
    params = "ptr addrspace(1) %out, ptr addrspace(1) %in, ptr %map"
    body = "\n".join(lines)
    return f"define ptx_kernel void @{name}({params}) #0 {{\n{body}\n  ret void\n}}\n"


def ptx_of(text, arch, threads):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    head = 'target triple = "nvptx64-nvidia-cuda"\n'
    tail = f'attributes #0 = {{ "nvvm.maxntid"="{threads}" "nvvm.minctasm"="1" }}\n'
    tail += "attributes #1 = { convergent nounwind }\n"
    machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        cpu=arch, features=next((v for k, v in PTX_FOR.items() if k in text), "+ptx84"), opt=3
    )
    module = llvm.parse_assembly(head + text + tail)
    module.verify()
    return machine.emit_assembly(module)


def assemble(text, arch, tmp_path, threads=128):
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("ptxas not found")
    source = tmp_path / "rows.ptx"
    source.write_text(ptx_of(text, arch, threads))
    done = subprocess.run(
        [ptxas, f"-arch={arch}", "-v", "-o", str(tmp_path / "rows.cubin"), str(source)],
        capture_output=True,
        text=True,
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report[:3000]
    assert "C75" not in report and "warning" not in report.lower(), report[:3000]
    assert not [
        line
        for line in report.split("\n")
        if "spill" in line and " 0 bytes spill stores" not in line
    ]
    return source.read_text()


SPARSE = [r for r in MATRIX_INSTRUCTIONS.values() if isinstance(r, SparseMmaInstruction)]


@pytest.mark.parametrize("row", SPARSE, ids=lambda r: r.name)
def test_metadata_live_where_the_manual_says(row):
    """PTX ISA, "Sparse MMA metadata layout" for .m16n8k32 of .f16 and .m16n8k16 of .tf32: threads 0
    and 1 of each four (selector 0) or 2 and 3 (selector 1) have those of rows groupID in the low
    and groupID + 8 in the high half, of the first and the second half of K; for .m16n8k64 of 8 bits
    all four have a row's half each."""
    table = row.metadata.table("reg", "lane", "warp")
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        if row.unit == 16:
            want = [(group, thread), (group + 8, thread)]
        else:
            want = [(group + 8 * (thread % 2), thread // 2)]
        assert [tuple(at) for at in table[:, lane, 0]] == want
    reach = row.metadata.shape[1] // row.selectors * (row.unit // 4)
    assert reach * (2 if row.a_dtype.bits == 32 else 4) == row.k  # all of K of one instruction


def test_ptxas_takes_the_sm_80_rows(tmp_path):
    target = TARGETS["cuda:sm_80"]
    rows = [*MEMORY_INSTRUCTIONS, memory.cp_async_wait(2), sync.BARRIER_SYNC, sync.WARP_SYNC]
    pieces = [r.asm for r in rows if target.has(r.feature)]
    rows = [r for r in MATRIX_INSTRUCTIONS.values() if isinstance(r, MmaInstruction)]
    pieces += [r.asm() for r in rows if target.has(r.feature)]
    pieces += [r.asm(s) for r in SPARSE for s in range(r.selectors) if target.has(r.feature)]
    assert len(pieces) > 20
    assemble("".join(kernel(f"k{i}", [p]) for i, p in enumerate(pieces)), "sm_80", tmp_path)


def test_ptxas_takes_the_sm_90a_rows(tmp_path):
    rows = [
        *MEMORY_INSTRUCTIONS, *SYNC_INSTRUCTIONS, sync.mbarrier_init(3),
        sync.mbarrier_expect(32768),
        sync.setmaxnreg(40, False), sync.setmaxnreg(232, True), memory.tma_store_wait(0, False),
        memory.tma_store_wait(1, True),
    ]  # fmt: skip
    pieces = [r.asm for r in rows]
    pieces += [r.asm() for r in MATRIX_INSTRUCTIONS.values() if isinstance(r, MmaInstruction)]
    pieces += [r.asm(s) for r in SPARSE for s in range(r.selectors)]
    text = assemble("".join(kernel(f"k{i}", [p]) for i, p in enumerate(pieces)), "sm_90a", tmp_path)
    assert "cp.async.bulk.tensor.5d" in text and "stmatrix" in text


def products(row):
    """The product under every choice that fits the registers of one warpgroup."""
    mn = "mn" in row.majors
    two = 2 * row.registers[2] <= 192
    m_blocks = 2 if two else 1
    a_steps = tuple(512 * i + 2 * s for i in range(m_blocks) for s in range(2))
    yield row.product(m_blocks, a_steps, (0, 128), accumulate="if", b_transposed=mn), m_blocks
    if row.n in (8, 64, 96, 128, 176, 256):
        yield row.product(1, (0, 2), (0, 2), accumulate="never"), 1
        yield row.product(1, (0, 2), (0, 2), accumulate="always", a_transposed=mn), 1
        if row.registers[2] < 128:
            yield row.product(1, (), (0, 128), b_transposed=mn, a_place="fragment"), 1


WGMMA_FAMILIES = sorted({n.split(".", 2)[2] for n in MATRIX_INSTRUCTIONS if n.startswith("wgmma")})


@pytest.mark.parametrize("family", WGMMA_FAMILIES)
def test_ptxas_takes_every_wgmma_without_serialising_it(tmp_path, family, request):
    """Of all columns for one family (usually every fourth number of them), of the fewest and the
    most for the others."""
    rows = [
        r
        for r in MATRIX_INSTRUCTIONS.values()
        if isinstance(r, WgmmaInstruction) and r.name.split(".", 2)[2] == family
    ]
    step = 8 if request.config.getoption("--every-cell") else 32
    most = 0 if family == "f16" else 255
    rows = [r for r in rows if r.n == 8 or (r.n > most and r.n % step == 0)]
    kernels = []
    for row in rows:
        kind = "f" if row.c_dtype.short == "f32" else "r"
        for piece, m_blocks in products(row):
            done = wgmma_wait(0, [kind] * (m_blocks * row.registers[2]))
            kernels.append(kernel(f"k{len(kernels)}", [piece, done]))
    text = assemble("".join(kernels), "sm_90a", tmp_path)
    assert text.count("wgmma.mma_async") >= 2 * len(kernels)


def test_wgmma_refuses_operands_it_cannot_read():
    with pytest.raises(InternalError, match="not K-major"):
        find_instruction("wgmma.m64n8k32.i8").product(1, (0,), (0,), b_transposed=True)


@pytest.mark.parametrize("name", ["hip:gfx942", "hip:gfx950"])
def test_llvm_takes_the_mfma_rows(name):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = find_target(name)
    machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(
        cpu=target.arch, opt=3
    )
    rows = [
        r
        for r in MATRIX_INSTRUCTIONS.values()
        if isinstance(r, MfmaInstruction) and target.has(r.feature)
    ]
    text = ""
    for i, row in enumerate(rows):
        f = row.intrinsic()
        params = [f"{t} %p{j}" for j, t in enumerate(f.inputs)]
        constants = "".join(f", i32 {c}" for c in f.constants)
        text += (
            f"declare {f.output} @{f.name}({', '.join(f.inputs)}{', i32 immarg' * 3})\n"
            f"define amdgpu_kernel void @k{i}(ptr addrspace(1) %out, {', '.join(params)}) {{\n"
            f"  %d = call {f.output} @{f.name}({', '.join(params)}{constants})\n"
            f"  store {f.output} %d, ptr addrspace(1) %out\n  ret void\n}}\n"
        )
    module = llvm.parse_assembly('target triple = "amdgcn-amd-amdhsa"\n' + text)
    assembly = machine.emit_assembly(module)
    words = {"fp8": "fp8", "e4m3": "fp8", "e5m2": "bf8", "tf32": "xf32", "i32": "i32"}
    for row in rows:
        a, b = (words.get(x.short, x.short) for x in (row.a_dtype, row.b_dtype))
        ending = f"{a}_{b}" if row.a_dtype.bits == 8 and row.a_dtype.is_float else a
        assert f"v_mfma_{row.c_dtype.short}_{row.m}x{row.n}x{row.k}_{ending}" in assembly, row.name


def test_simt_rows_are_one_element_each():
    for row in (r for r in MATRIX_INSTRUCTIONS.values() if isinstance(r, SimtInstruction)):
        assert (row.m, row.n, row.k) == (1, 1, 1) and row.c == Layout((1, 1), ())


def test_simt_integers_wrap():
    row = find_instruction("simt.fma.i8")
    a, b, c = (np.array([[x]], np.int8) for x in (100, 3, 5))
    assert row.semantics(a, b, c)[0, 0] == np.int8((305 + 128) % 256 - 128)


@pytest.mark.parametrize("limit,want", [(0, 1), (1, 1), (3, 2), (15, 8), (16, 16), (100, 16)])
def test_vector_widths(limit, want):
    assert memory.vector_bytes(limit) == want
