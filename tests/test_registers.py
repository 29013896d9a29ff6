"""The register budget: what is refused before code is made, and what the shares are."""

from __future__ import annotations

import os
import re
import sys
import warnings
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from ring_programs import ONE_BLOCK, one_block_product
from test_lowering import matmul_text

import tilec
import tilec.language as T
from tilec.codegen import emit
from tilec.codegen.assemble import Assembled, assemble
from tilec.codegen.isolated import run_isolated
from tilec.ir.core import walk
from tilec.ir.errors import CompileWarning, InternalError, ResourceError
from tilec.ir.ops import Scope, Wgmma
from tilec.ir.parser import parse_func
from tilec.jit.attempts import Attempts, _with_producers
from tilec.jit.simulate import launch_of, records_for
from tilec.passes.utils.distribution import covering
from tilec.passes.utils.registers import (
    AMPLE,
    FEWEST,
    at_launch,
    budget,
    register_split,
    widest_wgmma,
)
from tilec.sim.launch import Wishes
from tilec.sim.launch import run as simulate
from tilec.support.tools import find_ptxas
from tilec.target import find_target
from tilec.tune.fit import first_fit

M, N, K = T.dynamic("M, N, K")
B, H, G, P = T.dynamic("B, H, G, P")

SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))


def test_the_pool_is_never_overdrawn():
    for groups, blocks, asked in product(range(1, 8), range(1, 4), (0, FEWEST, AMPLE)):
        consumer, producer = register_split(4 * groups, SM90, asked, blocks)
        if consumer:
            launched = at_launch((groups + 1) * 128 * blocks, SM90)
            assert consumer * groups + producer <= launched * (groups + 1)
            assert producer <= launched <= consumer, "one gives, the other takes"
            assert consumer % 8 == producer % 8 == 0 and producer == (asked or producer)
    assert register_split(8, SM90) == (232, 40), "the split that was measured"
    assert register_split(8, SM90, FEWEST) == (240, 24) and register_split(8, SM90, AMPLE)[1] == 56
    assert register_split(12, SM90, AMPLE, 3) == (0, 0), "launched with 40, they have none to give"


def ring_sums(threads: int) -> tilec.kernel.Kernel:
    """Without a product, so that it may be made again with fewer registers for more blocks."""

    @tilec.kernel
    def sums(A: T.Tensor((M, K), "float32"), C: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, 32), threads=threads) as by:
            s, f = T.alloc_shared((32, 64), "float32"), T.alloc_fragment((32, 64), "float32")
            T.annotate_schedule(specialise=True)
            T.clear(f)
            for k in T.Pipelined(T.ceildiv(K, 64)):
                T.copy(A[by * 32, k * 64], s)
                for i, j in T.Parallel(32, 64):
                    f[i, j] += s[i, j]
            T.copy(f, C[by * 32, 0])

    return sums


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas gives the registers at launch")
@pytest.mark.parametrize("threads", [256, 384, 512])
def test_no_block_waits_for_registers_that_it_was_not_launched_with(threads):
    """On an H200 a block of 384 threads launched with 80 registers each asked for 232 and hung."""
    given = [tilec.spec(shape, "float32") for shape in ((256, 1024), (256, 64))]
    made = ring_sums(threads).compile(*given, target="cuda:sm_90a")
    asked = re.findall(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 (\d+)", made.stages["ptx"])
    shares = {way: int(n) for way, n in asked}
    assert shares.keys() == {"inc", "dec"}
    groups = made.resources.threads // 128
    assert shares["inc"] * (groups - 1) + shares["dec"] <= made.resources.registers * groups


@pytest.mark.parametrize("producer", [FEWEST, AMPLE])
@pytest.mark.parametrize("blocks", [1, 2])
def test_another_split_is_of_the_registers_that_the_block_was_launched_with(blocks, producer):
    """Of two blocks of a multiprocessor, each would wait for the registers of the other."""
    text = parse_func(matmul_text(128, 64, 32, 2, 256, 0, 1))
    func = first_fit(text.with_attrs(min_blocks=blocks), SM90)
    changed = _with_producers(func, SM90, producer)
    assert changed is not None
    shares = {o.name: o.registers for o in walk(changed.body) if isinstance(o, Scope)}
    assert shares["producer"] == producer
    assert 2 * shares["consumer"] + producer <= 3 * at_launch(384 * blocks, SM90)
    assert _with_producers(changed, SM90, producer) is None, "nobody has more"


@pytest.mark.parametrize("said", [0, 1], ids=["shares", "and the user's own"])
@pytest.mark.parametrize("producer", [FEWEST, AMPLE])
def test_another_split_is_the_code_that_would_be_made_anew(monkeypatch, producer, said):
    """LLVM works again only where a user's assembly says what tilec's does."""
    monkeypatch.setenv("TILEC_PTXAS", "off")
    func = first_fit(parse_func(matmul_text(128, 64, 32, 2, 256, 0, 1)), SM90)
    changed = _with_producers(func, SM90, producer)
    assert changed is not None
    tried = Attempts(SM90)
    made = tried.make(None, func)
    if said:
        text = f"{made.llvm_text}; {tried._shares(func)[0]}\n"
        made = replace(made, llvm_text=text)
    worked = []

    def assembled(text, target, *_):
        worked.append(text)
        return assemble(text, target)

    monkeypatch.setattr(sys.modules["tilec.jit.attempts"], "assemble", assembled)
    again, anew = tried._shared_out(made, changed), assemble(emit(changed, SM90), SM90)
    assert again.llvm_text == anew.llvm_text and again.asm == anew.asm != made.assembled.asm
    assert len(worked) == said


def shared_runs():
    """Rows of one product with keys that are shared out to blocks."""

    @tilec.kernel
    def runs(
        Q: T.Tensor((B, H, 128), "float16"),
        K: T.Tensor((B, N, G, 128), "float16"),
        V: T.Tensor((B, N, G, 128), "float16"),
        lengths: T.Tensor((B,), "int32"),
        Parts: T.Tensor((B, P, H, 128), "float32"),
    ):
        with T.Kernel(P, G * T.ceildiv(H // G, 64), B, threads=128) as (part, by, b):
            q, k, v = (T.alloc_shared((64, 128), "float16") for _ in range(3))
            s, o = (T.alloc_fragment((64, n), "float32") for n in (64, 128))
            p = T.alloc_fragment((64, 64), "float16")
            T.annotate_schedule(consumers="pingpong")
            across = T.ceildiv(H // G, 64)
            g = by // across
            head = g * (H // G) + by % across * 64
            T.copy(Q[b, head : head + 64, :], q)
            T.clear(o)
            blocks = T.ceildiv(T.min(lengths[b], N), 64)
            each = T.ceildiv(blocks, P)
            for n in T.Pipelined(part * each, T.min(part * each + each, blocks)):
                T.copy(K[b, n * 64 : n * 64 + 64, g, :], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(s, p)
                T.copy(V[b, n * 64 : n * 64 + 64, g, :], v)
                T.gemm(p, v, o)
            T.copy(o, Parts[b, part, head : head + 64, :])

    return runs


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas says what spills")
@pytest.mark.parametrize(("keys", "shares"), [(4096, ["232", "40"]), (32768, ["224", "56"])])
def test_producers_with_64_bit_indices_have_registers_for_their_divisions(keys, shares):
    """Of 2**31 elements and more; with 40 registers, one of a producer's is spilled."""
    cache = tilec.spec((64, keys, 8, 128), "float16")
    made = shared_runs().compile(
        tilec.spec((64, 64, 128), "float16"),
        *(cache, cache, tilec.spec((64,), "int32")),
        tilec.spec((64, 8, 64, 128), "float32"),
        target="cuda:sm_90a",
    )
    assert made.resources.spilled_bytes == 0
    assert re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)", made.stages["ptx"]) == shares


def test_the_simulator_knows_the_registers_at_launch():
    kernel = ring_sums(256)
    a, c = np.ones((32, 64), np.float32), np.zeros((32, 64), np.float32)
    planned = kernel.plan_launch("cuda:sm_90a", None, (a, c), {})
    launch = launch_of(planned, records_for(kernel, planned))
    assert launch.at_launch == 168 and not simulate(launch, Wishes()).findings
    (finding,) = simulate(replace(launch, at_launch=80), Wishes()).findings
    assert finding.kind == "register pool" and "232" in str(finding)


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_fragment_that_no_thread_can_hold(target):
    text = matmul_text(256, 256, 32, 2, 256, 0, 0)
    with pytest.raises(ResourceError) as caught:
        first_fit(parse_func(text), target)
    message = str(caught.value)
    assert "256x256 float32 fragment acc takes 256 registers of each of 256 threads" in message
    assert caught.value.hint.startswith(("halve the tile: 128x256", "threads=512"))
    assert caught.value.loc is not None and caught.value.loc.line > 0
    assert len(message.split("\n")) <= 12


def test_wide_products_split_where_the_launch_has_few_registers():
    """With four warpgroups in a block an n=256 instruction does not compile (C7602)."""
    assert widest_wgmma(256, True, SM90) == 256
    assert widest_wgmma(384, True, SM90) == 200
    func = first_fit(parse_func(matmul_text(192, 256, 32, 2, 384, 0, 1)), SM90)
    rows = {o.instr for o in walk(func.body) if isinstance(o, Wgmma)}
    assert all(int(r.split("n")[1].split("k")[0]) <= 200 for r in rows)
    scopes = [o for o in func.body.ops if isinstance(o, Scope)]
    assert all(s.registers % 8 == 0 for s in scopes)
    assert budget(256, True, SM90) == 208


def test_a_child_that_aborts_is_an_error_here():
    assert run_isolated(lambda: b"code", "made") == b"code"
    with pytest.raises(InternalError, match="cannot make it: the last words"):
        run_isolated(_abort, "cannot make it")
    with pytest.raises(InternalError, match="cannot make it: refused"):
        run_isolated(_refuse, "cannot make it")


def _abort() -> bytes:
    os.write(2, b"much before\nthe last words\n")
    os.abort()


def _refuse() -> bytes:
    raise InternalError("refused")


@pytest.mark.parametrize("extents", [(18, 66), (100,), (7, 33), (3, 5, 70), (1000, 3), (128, 64)])
@pytest.mark.parametrize("warps", [1, 4, 12])
def test_every_thread_works_on_odd_tiles(extents, warps):
    layout = covering(extents, 32, warps, 1)
    assert all(a >= b for a, b in zip(layout.shape, extents))
    work = layout.size("reg") * 32 * warps
    if prod(extents) >= 32 * warps:
        assert work <= 2.2 * prod(extents), "half the threads would be idle"
    assert covering((128, 64), 32, 4, 4).shape == (128, 64), "nothing is added where it divides"


def big_tile(threads, most):
    @tilec.kernel
    def doubled(
        A: T.Tensor((M, N), "float32"),
        C: T.Tensor((M, N), "float32"),
        BN: T.constexpr = most,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, 128), threads=threads) as (bx, by):
            tile = T.alloc_fragment((128, BN), "float32")
            T.copy(A[by * 128, bx * BN], tile)
            for i, j in T.Parallel(128, BN):
                tile[i, j] = tile[i, j] * 2
            T.copy(tile, C[by * 128, bx * BN])

    return doubled


@pytest.mark.parametrize("target", [SM90, SM80], ids=str)
def test_a_fragment_of_a_group_is_its_threads(target):
    """More threads of the block would not help a group that holds too much."""

    @tilec.kernel
    def halves(
        A: T.Tensor((128, 128), "float16"),
        B: T.Tensor((128, 256), "float16"),
        C: T.Tensor((128, 256), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 32), "float16")
            b = T.alloc_shared((32, 256), "float16")
            acc = T.alloc_fragment((128, 256), "float32")
            if T.get_thread_binding() < 128:
                T.clear(acc)
                for k in T.serial(4):
                    T.copy(A[0, k * 32], a)
                    T.copy(B[k * 32, 0], b)
                    T.gemm(a, b, acc)
                T.copy(acc, C)

    specs = [tilec.spec((128, n), "float16") for n in (128, 256)]
    specs.append(tilec.spec((128, 256), "float32"))
    with pytest.warns(CompileWarning, match="takes 256 registers of each of 128 threads") as given:
        halves.compile(*specs, target=str(target))
    assert "let a group of more threads work on it" in str(given[0].message)


def test_what_would_not_fit_with_registers_in_memory_is_said():
    """To keep fragments in memory does not help a kernel with too much shared memory."""

    @tilec.kernel
    def much(A: T.Tensor((512, 320), "float32"), C: T.Tensor((128, 320), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_fragment((128, 320), "float32")
            all_rows = T.alloc_shared((512, 320), "float32")
            T.copy(A, all_rows)
            T.copy(all_rows[128:256, :], tile)
            for i, j in T.Parallel(128, 320):
                tile[i, j] = tile[i, j] * 2 + all_rows[i, j]
            T.copy(tile, C)

    specs = tilec.spec((512, 320), "float32"), tilec.spec((128, 320), "float32")
    with pytest.raises(ResourceError, match="needs 655,360 bytes of shared memory a block"):
        much.compile(*specs, target="cuda:sm_90a")


@pytest.mark.parametrize("target", [SM90, SM80], ids=str)
def test_a_tile_that_its_author_has_fixed_spills_with_a_warning(target):
    kernel, specs = big_tile(128, 320), (tilec.spec((200, 1000), "float32"),) * 2
    with pytest.warns(CompileWarning, match="takes 320 registers of each of 128 threads") as given:
        made = kernel.compile(*specs, target=str(target))
    assert "kept in memory, which is slow" in str(given[0].message)
    assert "tile of " in str(given[0].message) or "threads=256 fits" in str(given[0].message)
    assert made.resources.spilled_bytes is None or made.resources.spilled_bytes > 0
    a = np.arange(130 * 330, dtype=np.float32).reshape(130, 330)
    c = np.zeros_like(a)
    report = tilec.simulate(kernel, a, c, target=str(target))
    assert not report.findings
    np.testing.assert_array_equal(c, 2 * a)


def test_it_is_no_fault_where_the_target_has_the_registers_after_all():
    """AMD's second half of the register file is for accumulators first, not only."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        made = big_tile(128, 320).compile(
            *(tilec.spec((200, 1000), "float32"),) * 2, target="hip:gfx942"
        )
    assert made.resources.spilled_bytes == 0 and made.resources.registers > 256


def test_sizes_left_open_are_chosen_so_that_they_fit():
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        made = big_tile(128, T.auto(64, 320)).compile(
            *(tilec.spec((200, 1000), "float32"),) * 2, target="cuda:sm_90a"
        )
    assert not made.resources.spilled_bytes


@tilec.kernel
def sums_of_rows(X: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32")):
    for i in T.Parallel(M):
        total = 0.0
        for j in range(N):
            total += X[i, j]
        S[i] = total


def product_of(side, columns=64, shown=False, threads=128):
    """`shown`: threads show in what it does, so that there are as many as it asks for."""

    @tilec.kernel
    def product(
        A: T.Tensor((64, K), "float16"),
        B: T.Tensor((K, columns), "float16"),
        C: T.Tensor((64, columns), "float32"),
        BN: T.constexpr = side,
    ):
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, BN), "float16")
            acc = T.alloc_fragment((64, BN), "float32")
            if shown:
                if T.get_thread_binding(0) == 128:
                    C[0, 0] = 1
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32)):
                T.copy(A[0, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[:, 0:BN])

    return product


@pytest.mark.parametrize(
    ("target", "shown"),
    [(SM90, True), (SM90, False), (SM80, False), (GFX942, True)],
    ids=lambda x: {True: "threads_show", False: "threads_do_not"}.get(x, str(x)),
)
def test_an_accumulator_that_its_author_has_fixed_spills_with_a_warning(target, shown):
    """No instruction of a warpgroup takes 256 registers: one of a warp does, part by part. Where
    threads do not show, 256 of them hold it."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype("float16") for s in ((64, 96), (96, 512)))
    c, kernel = np.zeros((64, 512), "float32"), product_of(512, 512, shown)
    with pytest.warns(CompileWarning, match="acc takes 256 registers of each of 128") as said:
        made = kernel.compile(a, b, c, target=str(target))
    assert "256 threads compute, not 128" in str(said[0].message) or shown
    assert "gemm" in made.stages["select_gemm"]
    assert ("wgmma" in made.stages["select_gemm"]) == (target is SM90 and not shown)
    spilled = made.resources.spilled_bytes
    assert spilled is None or (spilled > 0) == shown
    report = tilec.simulate(kernel, a, b, c, target=str(target))
    assert not report.findings
    np.testing.assert_array_equal(c, a.astype("float32") @ b.astype("float32"))


@pytest.mark.parametrize("least", [0, 400])
def test_producers_give_what_they_can_spare_where_a_little_spills(monkeypatch, least):
    """Not where much does, for eight registers more do not mend that."""
    texts = []

    def assemble(text, target, *_):
        texts.append(text)
        fits = "setmaxnreg.inc.sync.aligned.u32 240" in text
        spilled = 0 if fits else max(8, least)
        told = (f"{spilled} bytes spilled",) if spilled else ()
        return Assembled(text, target, b"", spilled_bytes=spilled, advisories=told)

    def with_instructions(made, others):
        text = made.llvm_text
        for own, other in others.items():
            text = text.replace(own, other)
        return assemble(text, made.target)

    attempts = sys.modules["tilec.jit.attempts"]
    monkeypatch.setattr(attempts, "assemble", assemble)
    monkeypatch.setattr(attempts, "with_instructions", with_instructions)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        made = one_block_product().compile(*ONE_BLOCK, target="cuda:sm_90a")
    assert made.resources.spilled_bytes == least
    again = [t for t in texts if "setmaxnreg.dec.sync.aligned.u32 24;" in t]
    assert len(again) == (least == 0)
    assert ("setmaxnreg.inc.sync.aligned.u32 240" in made.stages["llvm"]) == (least == 0)


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_what_the_assembler_spills_is_warned_of(monkeypatch, target):
    """The fragments fit by their sizes, and the assembler keeps other values in memory: a warning
    where the author has fixed all sizes, and none where tilec chooses."""

    def spilling(text, target, *_):
        return Assembled(text, target, b"", spilled_bytes=800, advisories=("800 bytes spilled",))

    monkeypatch.setattr(sys.modules["tilec.jit.attempts"], "assemble", spilling)
    specs = [tilec.spec((64, 96), "float16"), tilec.spec((96, 64), "float16")]
    specs.append(tilec.spec((64, 64), "float32"))
    with pytest.warns(CompileWarning, match="acc takes 32 registers of each of 128") as given:
        product_of(64).compile(*specs, target=str(target))
    text = str(given[0].message)
    assert len(given) == 1 and "800 bytes of what a thread has are kept in memory" in text
    assert "acc = T.alloc_fragment" in text and "help: write threads=256" in text
    with pytest.warns(CompileWarning, match="kept in memory") as given:
        product_of(64, threads=1024).compile(*specs, target=str(target))
    assert str(given[0].message).endswith("help: use a smaller tile")  # no block has 2048 threads
    rows = tilec.spec((64, 4000), "float32"), tilec.spec((64,), "float32")
    with pytest.warns(CompileWarning, match="kept in memory") as given:
        sums_of_rows.compile(*rows, target=str(target))
    assert str(given[0].message).endswith("or write its tiles with T.Kernel")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        product_of(T.auto(32, 64)).compile(*specs, target=str(target))


@pytest.mark.parametrize("registers, said", [(64, True), (128, False)])
def test_few_spills_of_few_registers_are_many(monkeypatch, registers, said):
    def spilling(text, target, *_):
        return Assembled(text, target, b"", registers, 108, advisories=("108 bytes spilled",))

    monkeypatch.setattr(sys.modules["tilec.jit.attempts"], "assemble", spilling)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    specs = [tilec.spec((64, 96), "float16"), tilec.spec((96, 64), "float16")]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        product_of(64).compile(*specs, tilec.spec((64, 64), "float32"), target=str(SM80))
    assert len(given) == said


def test_more_than_any_assembler_takes_is_still_an_error():
    with pytest.raises(ResourceError, match="takes 2048 registers of each of 64 threads"):
        big_tile(64, 1024).compile(*(tilec.spec((200, 1000), "float32"),) * 2, target="cuda:sm_80")
    specs = [tilec.spec((512, 512), "float16")] * 2
    with pytest.raises(ResourceError, match="takes 1024 registers of each of 32 threads"):
        large_product.compile(*specs, tilec.spec((512, 512), "float32"), target="cuda:sm_80")


@tilec.kernel
def large_product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 256), T.ceildiv(M, 128), threads=32) as (bx, by):
        a = T.alloc_shared((128, 32), "float16")
        b = T.alloc_shared((32, 256), "float16")
        acc = T.alloc_fragment((128, 256), "float32")
        T.clear(acc)
        for k in T.serial(T.ceildiv(K, 32)):
            T.copy(A[by * 128, k * 32], a)
            T.copy(B[k * 32, bx * 256], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 128, bx * 256])


@tilec.kernel
def largest_of_rows(A: T.Tensor((128, 128), "int64"), B: T.Tensor((128,), "int64")):
    """One of TileLang's tests: 1024 registers for each thread."""
    with T.Kernel(1, threads=32):
        x = T.alloc_fragment((128, 128), "int64")
        y = T.alloc_fragment((128,), "int64")
        T.copy(A, x)
        T.reduce_absmax(x, y, dim=1)
        T.copy(y, B)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
def test_a_fragment_of_a_thousand_registers(rng, target):
    a = rng.integers(-(2**60), 2**60, (128, 128))
    b = np.zeros(128, np.int64)
    with pytest.warns(CompileWarning, match="kept in memory, which is slow"):
        largest_of_rows.compile(a, b, target=target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        assert not tilec.simulate(largest_of_rows, a, b, target=target).findings
    np.testing.assert_array_equal(b, np.abs(a).max(1))


@pytest.mark.gpu
@pytest.mark.parametrize("most", [256, 512])
def test_spilled_tiles_on_the_gpu(most, torch):
    a = torch.randn(200, 1000, device="cuda")
    c = torch.zeros_like(a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        big_tile(128, most)(a, c)
    assert torch.equal(c, 2 * a)
