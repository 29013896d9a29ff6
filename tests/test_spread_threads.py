"""Tiles that do not fit in the registers of the threads that their author asks for are computed by
more of them, where threads show in nothing that the kernel does; and num_stages of 0 or 1
is the least depth of a loop with products, as any number is."""

import numpy as np
import pytest

import tilec
import tilec.language as T

D = 128
S, L, R = T.dynamic("S L R")


@tilec.kernel
def attention(
    Q: T.Tensor((S, D), "float16"),
    K: T.Tensor((L, D), "float16"),
    V: T.Tensor((L, D), "float16"),
    O: T.Tensor((S, D), "float16"),
    threads: T.constexpr = 128,
    BN: T.constexpr = 128,
    seen: T.constexpr = False,
    least: T.constexpr = 1,
):
    with T.Kernel(T.ceildiv(Q.shape[0], 128), threads=threads) as bx:
        q = T.alloc_shared((128, D), "float16")
        k = T.alloc_shared((BN, D), "float16")
        v = T.alloc_shared((BN, D), "float16")
        s = T.alloc_fragment((128, BN), "float32")
        p = T.alloc_fragment((128, BN), "float16")
        o = T.alloc_fragment((128, D), "float32")
        top = T.alloc_fragment((128,), "float32")
        before = T.alloc_fragment((128,), "float32")
        part = T.alloc_fragment((128,), "float32")
        total = T.alloc_fragment((128,), "float32")
        if seen:
            if T.get_thread_binding(0) == 128:  # none of 128 threads
                O[0, 0] = 1
        T.copy(Q[bx * 128, 0], q)
        T.clear(o)
        T.clear(total)
        T.fill(top, -T.infinity("float32"))
        for n in T.Pipelined(T.ceildiv(K.shape[0], BN), num_stages=least):
            T.copy(K[n * BN, 0], k)
            T.clear(s)
            T.gemm(q, k, s, transpose_B=True)
            T.copy(top, before)
            T.reduce_max(s, top, dim=1, clear=False)
            for i, j in T.Parallel(128, BN):
                s[i, j] = T.exp2(s[i, j] - top[i])
            T.reduce_sum(s, part, dim=1)
            for i in T.Parallel(128):
                total[i] = total[i] * T.exp2(before[i] - top[i]) + part[i]
            for i, j in T.Parallel(128, D):
                o[i, j] *= T.exp2(before[i] - top[i])
            T.copy(s, p)
            T.copy(V[n * BN, 0], v)
            T.gemm(p, v, o)
        for i, j in T.Parallel(128, D):
            o[i, j] /= total[i]
        T.copy(o, O[bx * 128, 0])


@tilec.kernel
def centred(X: T.Tensor((128, 384), "float32"), Y: T.Tensor((128, 384), "float32")):
    with T.Kernel(1, threads=128):
        x = T.alloc_fragment((128, 384), "float32")
        mean = T.alloc_fragment((128,), "float32")
        T.copy(X, x)
        T.reduce_sum(x, mean, dim=1)
        for i, j in T.Parallel(128, 384):
            x[i, j] = x[i, j] - mean[i] / 384
        T.copy(x, Y)


@tilec.kernel
def by_thread(
    A: T.Tensor((256, D), "float16"),
    B: T.Tensor((256, D), "float16"),
    C: T.Tensor((256, D), "float16"),
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((256, D), "float16")
        b = T.alloc_shared((D, D), "float16")
        c = T.alloc_fragment((256, D), "float32")
        T.clear(c)
        for k in T.Pipelined(2):
            T.copy(A, a)
            T.copy(B[k * D, 0], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(256, D):
            c[i, j] = T.exp2(c[i, j])
        T.copy(c, C)
        C[T.get_thread_binding(0), 0] = 1


def _attention_specs(s: int = 256, l: int = 256):
    return [tilec.spec((n, D), "float16") for n in (s, l, l, s)]


def test_products_are_computed_by_two_warpgroups(recwarn):
    made = attention.compile(*_attention_specs(), target="cuda:sm_90a")
    assert not recwarn
    assert made.plan.threads == 256 and made.resources.threads >= 256
    assert not made.resources.spilled_bytes and "(threads=256" in made.stages["plan"]
    assert "wgmma.mma_async" in made.stages["ptx"]


def test_a_second_group_where_one_is_slower(recwarn):
    """Scores of 128x64 and sums of 128x128 fit in the registers of 128 threads, barely: they are
    192 of each. A tile of half of the rows has no second group to share it with."""
    made = attention.compile(*_attention_specs(4096, 4096), target="cuda:sm_90a", BN=64)
    assert not recwarn, "there is nothing to do"
    assert made.plan.threads == 256 and "(threads=256" in made.stages["plan"]
    own = attention.recommend(*_attention_specs(4096, 4096), target="cuda:sm_90a", BN=64, topk=99)
    first, alone = own[0], next(r for r in own if r.plan.threads is None)
    assert first.plan.threads == 256 and first.estimate.seconds < 0.9 * alone.estimate.seconds


def test_the_authors_group_where_it_is_faster(recwarn):
    """Two groups that take turns have a tile each."""

    @tilec.kernel
    def product(
        A: T.Tensor((S, R), "float16"),
        B: T.Tensor((R, L), "float16"),
        C: T.Tensor((S, L), "float16"),
    ):
        with T.Kernel(T.ceildiv(L, 128), T.ceildiv(S, 128), threads=128) as (bx, by):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(R, 64), num_stages=2):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, bx * 128], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 128])

    specs = [tilec.spec(s, "float16") for s in ((4096, 4096),) * 3]
    made = product.compile(*specs, target="cuda:sm_90a")
    assert not recwarn and made.plan.threads is None and made.plan.consumer_groups == 2


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("seen", [False, True])
def test_who_has_a_second_group(target, seen, recwarn):
    """Not where threads show, also in what passes find to hold for none of them; on targets with
    warpgroups."""
    more = target == "cuda:sm_90a" and not seen
    specs = _attention_specs(4096, 4096)
    own = attention.recommend(*specs, target=target, BN=64, seen=seen, topk=99)
    assert any(r.plan.threads for r in own) == more


def test_the_author_who_asks_for_enough_gets_no_warning(recwarn):
    made = attention.compile(*_attention_specs(), target="cuda:sm_90a", threads=256)
    assert not recwarn and made.plan.threads is None and made.resources.threads >= 256


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
def test_numbers_of_products(columns):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, D)).astype("float16") for n in (128, 256, 256))
    o = np.full((128, D), np.nan, "float16")
    report = tilec.simulate(
        attention, q * np.float16(0.1), k, v, o, target="cuda:sm_90a", BN=columns
    )
    assert report.ok, report
    s = (q * np.float16(0.1)).astype("d") @ k.astype("d").T
    p = 2.0 ** (s - s.max(1, keepdims=True))
    want = p @ v.astype("d") / p.sum(1, keepdims=True)
    assert np.abs(o - want).max() < 4e-3


@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
def test_what_holds_no_product_stays():
    """The compiler may load it again, or keep some of it in memory."""
    made = centred.compile(*[tilec.spec((128, 384), "float32")] * 2, target="cuda:sm_90a")
    assert made.plan.threads is None and made.resources.threads == 128


def test_threads_that_show_are_as_many_as_asked_for():
    with pytest.warns(tilec.PerformanceWarning, match="kept in memory"):
        made = by_thread.compile(*[tilec.spec((256, D), "float16")] * 3, target="cuda:sm_90a")
    assert made.plan.threads is None and made.resources.spilled_bytes


def test_barriers_by_hand_count_threads():
    """As many as the author says arrive, though nobody asks which thread it is."""

    @tilec.kernel
    def waits(
        A: T.Tensor((256, D), "float16"),
        B: T.Tensor((D, D), "float16"),
        C: T.Tensor((256, D), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((256, D), "float16")
            b = T.alloc_shared((D, D), "float16")
            c = T.alloc_fragment((256, D), "float32")
            bar = T.alloc_barrier(128)
            T.copy(A, a)
            T.copy(B, b)
            T.barrier_arrive(bar)
            T.barrier_wait(bar, 0)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, C)

    specs = [tilec.spec((n, D), "float16") for n in (256, D, 256)]
    with pytest.warns(tilec.PerformanceWarning, match="kept in memory"):
        made = waits.compile(*specs, target="cuda:sm_90a")
    assert made.plan.threads is None and made.resources.threads == 128


@pytest.mark.parametrize("least", [0, 1])
def test_one_stage_is_the_least(least):
    """With room for more, copies of the loop run ahead."""
    specs = _attention_specs()
    made = attention.compile(*specs, target="cuda:sm_90a", threads=256, least=least)
    assert made.plan.stages > 1 and "ahead: k, by tma" in made.stages["plan"]
