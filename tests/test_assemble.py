"""LLVM text to machine code: figures, messages, and what must never reach LLVM."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilec.codegen.assemble import Assembled, assemble
from tilec.codegen.disassemble import disassemble
from tilec.codegen.ptxas import parse_report, run_ptxas
from tilec.codegen.selectable import check_intrinsics
from tilec.ir.errors import InternalError, TilecError
from tilec.support.tools import find_ptxas
from tilec.target import find_target

CUDA = ("cuda:sm_80", "cuda:sm_90a")
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas")

NVPTX = """
define ptx_kernel void @k(ptr addrspace(1) %p) #0 {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %q = getelementptr float, ptr addrspace(1) %p, i32 %t
  %v = load float, ptr addrspace(1) %q
  %e = call float @llvm.exp2.f32(float %v)
  store float %e, ptr addrspace(1) %q
  ret void
}
attributes #0 = { "nvvm.maxntid"="128" }
"""

AMDGPU = """
define amdgpu_kernel void @k(ptr addrspace(1) %p) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %q = getelementptr float, ptr addrspace(1) %p, i32 %t
  %v = load float, ptr addrspace(1) %q
  %e = call float @llvm.exp2.f32(float %v)
  store float %e, ptr addrspace(1) %q
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "uniform-work-group-size"="true" }
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
"""

HOST = """
define void @k(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %q = getelementptr float, ptr %p, i64 %i
  %v = load float, ptr %q
  %e = call float @llvm.exp.f32(float %v)
  store float %e, ptr %q
  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %end
end:
  ret void
}
"""


def spilling(values: int) -> str:
    """A kernel for one block of 1024 threads (64 registers each) that keeps `values` floats
    alive."""
    body = [
        NVPTX.split("%e =")[0].replace(
            "float, ptr addrspace(1) %q", "volatile float, ptr addrspace(1) %q"
        )
    ]
    for i in range(values):
        body.append(f"  %a{i} = load volatile float, ptr addrspace(1) %q")
    for i in range(values):
        body.append(f"  store volatile float %a{i}, ptr addrspace(1) %q")
    return "\n".join(body) + '\n  ret void\n}\nattributes #0 = { "nvvm.maxntid"="1024" }\n'


# --- what comes out ---


@pytest.mark.parametrize("name", CUDA)
def test_ptx_names_its_architecture(name: str) -> None:
    made = assemble(NVPTX, find_target(name))
    assert f".target {name.split(':')[1]}\n" in made.asm
    assert "ex2.approx" in made.asm and ".maxntid 128" in made.asm
    assert {"parse", "verify", "optimise", "emit"} <= set(made.seconds)
    assert all(t >= 0 for t in made.seconds.values())


@needs_ptxas
@pytest.mark.parametrize("name", CUDA)
def test_cubin_and_figures(name: str) -> None:
    made = assemble(NVPTX, find_target(name))
    assert made.binary is not None and made.binary[:4] == b"\x7fELF"
    assert made.registers is not None and 4 <= made.registers <= 32
    assert (made.spilled_bytes, made.stack_bytes, made.advisories) == (0, 0, ())
    assert "ptxas" in made.seconds


@needs_ptxas
def test_spills_are_reported() -> None:
    made = assemble(spilling(96), find_target("cuda:sm_80"))
    assert made.registers == 64
    assert made.spilled_bytes is not None and made.spilled_bytes >= 4 * 32
    assert any("spilled" in line for line in made.advisories)


def test_without_ptxas_the_driver_gets_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_PTXAS", "off")
    made = assemble(NVPTX, find_target("cuda:sm_90a"))
    assert made.binary is None and made.registers is None and made.spilled_bytes is None
    assert ".visible .entry k(" in made.asm


def test_hsaco_and_figures() -> None:
    made = assemble(AMDGPU, find_target("hip:gfx942"))
    assert made.binary is not None and made.binary[:4] == b"\x7fELF"
    assert made.registers is not None and 1 <= made.registers <= 16
    assert (made.spilled_bytes, made.stack_bytes, made.advisories) == (0, 0, ())
    assert "v_exp_f32" in made.asm and ".amdhsa_kernel k" in made.asm
    assert "hidden" not in made.asm, "the attributor did not run"


def test_host_object_runs(rng: np.random.Generator) -> None:
    made = assemble(HOST, find_target("cpu"))
    assert made.binary is not None and made.registers is None
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(made.binary))
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("k"))
    given = rng.standard_normal(37).astype(np.float32)
    got = given.copy()
    call(got.ctypes.data, 31)
    np.testing.assert_allclose(got[:31], np.exp(given[:31].astype(np.float64)), rtol=1e-6)
    np.testing.assert_array_equal(got[31:], given[31:])


@pytest.mark.usefixtures("assembled_anew")
@pytest.mark.parametrize(
    ("name", "text"), [("cpu", HOST), ("hip:gfx942", AMDGPU), (CUDA[0], NVPTX)]
)
def test_optimised_text_is_made_on_demand(name: str, text: str) -> None:
    made = assemble(text, find_target(name))
    assert "llvm_opt" not in vars(made)
    assert "@k(" in made.llvm_opt and "target datalayout" in made.llvm_opt
    again = Assembled(text, find_target(name))
    assert again.asm == made.asm


def test_host_code_for_an_older_cpu() -> None:
    """`arch` names the CPU that code is made for; only "host" may use what this machine has."""
    if not llvm.get_process_triple().startswith("x86_64"):
        pytest.skip("x86-64 code")
    old = replace(find_target("cpu"), arch="x86-64")
    text = HOST.replace("call float @llvm.exp.f32(float %v)", "fmul float %v, 3.0")
    assert "ymm" not in assemble(text, old).asm and "mulss" in assemble(text, old).asm


@pytest.mark.usefixtures("assembled_anew")
def test_threads_have_their_own_machines() -> None:
    found: list[str] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.append(assemble(NVPTX, find_target("cuda:sm_80")).asm)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and len(found) == 4 and len(set(found)) == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.parametrize(("name", "text"), [("cpu", HOST), ("cuda:sm_90a", NVPTX)])
@pytest.mark.usefixtures("assembled_anew")
def test_compiling_leaves_little_memory_behind(name: str, text: str) -> None:
    """A pipeline keeps tables as large as the module; what is left is 50 kB of names of passes."""
    before, store = text.split("%e =")[0], text[text.index("  store") :]
    steps = [f"  %s{i} = fmul float %s{i - 1}, {i}.5" for i in range(1, 400)]
    steps[0] = "  %s0 = fadd float %v, 1.5\n" + steps[0]
    steps.append("  %e = fmul float %s399, 2.5")
    long = f"{before.rstrip()}\n" + "\n".join(steps) + f"\n{store}"

    def compiled(times: int) -> int:
        """Bytes of memory that the process has after so many times."""
        for _ in range(times):
            assert "%e" in Assembled(long, find_target(name)).llvm_opt
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    few, most = (15, 60) if name.startswith("cuda") else (5, 20)  # these are made in children
    before_them = compiled(few)
    assert (compiled(most) - before_them) / most < 100_000


@pytest.mark.skipif(shutil.which("llvm-objdump") is None, reason="needs llvm-objdump")
def test_disassembles_host_code() -> None:
    target = find_target("cpu")
    text = disassemble(assemble(HOST, target).binary or b"", target)
    assert text is not None and "<k>" in text
    assert disassemble(b"not an object", target) is None


# --- messages ---


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%t = call", "%t = coll", "expected instruction opcode (line 3)\n    %t = coll i32"),
        ("float %v)", "i32 %t)", "(line 6)\n    %e = call float @llvm.exp2.f32(i32 %t)"),
    ],
)
def test_parse_errors_show_the_line(old: str, new: str, message: str) -> None:
    with pytest.raises(InternalError) as raised:
        assemble(NVPTX.replace(old, new), find_target("cuda:sm_80"))
    assert "LLVM cannot parse" in str(raised.value) and message in str(raised.value)


def test_the_verifier_runs() -> None:
    text = NVPTX.replace("ret void", "%y = add i32 %z, 1\n  %z = add i32 %y, 1\n  ret void")
    with pytest.raises(InternalError, match="verifier"):
        assemble(text, find_target("cuda:sm_80"))


def test_a_missing_function_is_named() -> None:
    text = NVPTX.replace("@llvm.exp2.f32", "@expf") + "declare float @expf(float)"
    with pytest.raises(InternalError, match="calls expf"):
        assemble(text, find_target("cuda:sm_80"))


@needs_ptxas
def test_ptxas_errors_carry_its_message_and_line() -> None:
    ptxas = find_ptxas()
    assert ptxas is not None
    ptx = assemble(NVPTX, find_target("cuda:sm_80")).asm.replace("ret;", "rett;")
    with pytest.raises(InternalError, match="rett") as raised:
        run_ptxas(ptxas, ptx, "sm_80")
    assert "ptxas refuses" in str(raised.value) and "sm_80" in str(raised.value)


def test_ptxas_report() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Function properties for k
    144 bytes stack frame, 96 bytes spill stores, 92 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers
"""
    result = parse_report(b"", log)
    assert (result.registers, result.spilled_bytes, result.stack_bytes) == (168, 96, 144)
    assert len(result.advisories) == 2
    assert "C7511" in result.advisories[0] and "96 bytes" in result.advisories[1]


def test_ptxas_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TILEC_PTXAS", str(tmp_path / "none"))
    with pytest.raises(TilecError, match="TILEC_PTXAS=.*not an executable"):
        find_ptxas()
    tool = tmp_path / "my-ptxas"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TILEC_PTXAS", str(tool))
    assert find_ptxas() == tool


# --- what would end the process ---

REFUSED = [
    ("cuda:sm_80", "call void @llvm.nvvm.wgmma.fence.sync.aligned()", "wgmma.fence"),
    ("cuda:sm_80", "call void @llvm.nvvm.cp.async.bulk.commit.group()", "cp.async.bulk"),
    ("cuda:sm_80", "call void @llvm.nvvm.setmaxnreg.inc.sync.aligned.u32(i32 40)", "setmaxnreg"),
    ("cuda:sm_90a", "%x = call float @llvm.sin.f32(float 1.5)", "llvm.sin.f32"),
    ("cuda:sm_90a", "%x = call double @llvm.exp2.f64(double 1.5)", "llvm.exp2.f64"),
    ("cuda:sm_90a", "%x = call float @llvm.log2.f32(float 1.5)", "llvm.log2"),
]

ADMITTED = [
    ("cuda:sm_90a", "call void @llvm.nvvm.wgmma.fence.sync.aligned()"),
    ("cuda:sm_80", "%x = call afn float @llvm.sin.f32(float 1.5)"),
    ("cuda:sm_80", "%x = call float @llvm.exp2.f32(float 1.5)"),
]


@pytest.mark.parametrize(("name", "line", "word"), REFUSED)
def test_refused_by_table(name: str, line: str, word: str) -> None:
    with pytest.raises(InternalError) as raised:
        check_intrinsics(line, find_target(name))
    assert word in str(raised.value) and name in str(raised.value)


@pytest.mark.parametrize(("name", "line"), ADMITTED)
def test_admitted_by_table(name: str, line: str) -> None:
    check_intrinsics(line, find_target(name))


def test_assemble_asks_the_table_first(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["tilec.codegen.assemble"]
    monkeypatch.setattr(module, "_optimised", lambda *_: pytest.fail("LLVM was reached"))
    with pytest.raises(InternalError, match="cannot select llvm.sin.f32"):
        assemble(NVPTX.replace("exp2", "sin"), find_target("cuda:sm_80"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a child process that may die")
@pytest.mark.parametrize(
    ("name", "text", "survives"),
    [
        ("cuda:sm_80", NVPTX.replace("exp2", "sin"), False),
        ("cuda:sm_80", NVPTX.replace("call float @llvm.exp2", "call afn float @llvm.sin"), True),
        ("hip:gfx942", AMDGPU.replace("exp2", "tanh"), False),
        ("hip:gfx942", AMDGPU.replace("exp2", "sin"), True),
    ],
    ids=["sin-cuda", "sin-afn-cuda", "tanh-hip", "sin-hip"],
)
def test_the_table_is_true(name: str, text: str, survives: bool) -> None:
    """With the table switched off, LLVM ends the process on what it refuses, and only then: for AMD
    that process is a child, whose last words are in the error."""
    script = (
        "import sys, tilec.codegen; from tilec.target import find_target\n"
        "sys.modules['tilec.codegen.assemble'].check_intrinsics = lambda *_: None\n"
        f"tilec.codegen.assemble(sys.stdin.read(), find_target({name!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=text, text=True, capture_output=True
    )
    if survives:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert "Cannot select" in done.stderr or "no libcall" in done.stderr, done.stderr
