"""Random numbers of threads against cuRAND's sequence, counted in NumPy."""

import numpy as np
import pytest
from philox import Curand, philox
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
NEAR = {"rtol": 2e-5, "atol": 3e-6}


def blank(*shape, dtype="uint32"):
    return np.zeros(shape, dtype)


def test_the_reference_is_philox():
    """Known answers of Random123, kat_vectors."""
    ones = (0xFFFFFFFF,) * 4
    assert philox((0,) * 4, (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox(ones, ones[:2]) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    assert philox(pi[:4], pi[4:]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@tilec.kernel
def own(
    A: T.Tensor((2, 3, 70), "uint32"),
    F: T.Tensor((2, 3, 70), "float32"),
    G: T.Tensor((2, 3, 70), "float64"),
    seed: T.int64,
    threads: T.constexpr,
):
    with T.Kernel(2, threads=threads) as bx:
        tx = T.get_thread_binding(0)
        T.rng_init(seed)
        for k in T.serial(3):
            A[bx, k, tx] = T.rng_rand()
            if tx % 3 == k:
                F[bx, k, tx] = T.rng_rand_float()
        for k in T.serial(3):
            G[bx, k, tx] = T.rng_rand_float(64)
            F[bx, k, tx] += T.rng_rand_float(bit=32, dist="uniform")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads,seed", [(64, 42), (33, -5), (1, 1 << 40)])
def test_a_thread_has_its_own_sequence(target, threads, seed):
    A, F, G = blank(2, 3, 70), blank(2, 3, 70, dtype="f4"), blank(2, 3, 70, dtype="f8")
    want = [x.copy() for x in (A, F, G)]
    run(own, target, A, F, G, seed, threads=threads)
    for bx in range(2):
        for tx in range(threads):
            g = Curand(seed, bx * threads + tx)
            for k in range(3):
                want[0][bx, k, tx] = g.word()
                if tx % 3 == k:
                    want[1][bx, k, tx] = g.uniform()
            for k in range(3):
                want[2][bx, k, tx] = g.uniform(64)
                want[1][bx, k, tx] += g.uniform()
    for found, wanted in zip((A, F, G), want):
        assert np.array_equal(found, wanted)


@tilec.kernel
def far(A: T.Tensor((4, 9), "uint32"), seed: T.uint64, seq: T.uint64, off: T.uint64):
    with T.Kernel(1, threads=4):
        tx = T.get_thread_binding(0)
        T.rng_init(seed, seq, off + T.cast(tx, "uint64"))
        for k in T.unroll(9):
            A[tx, k] = T.rng_rand()


@pytest.mark.parametrize("target", TARGETS)
def test_sequences_and_offsets_of_64_bits(target):
    for seed, seq, off in (
        (0, 0, 0),
        (2**64 - 1, 2**64 - 1, 2**34 - 7),
        (0x123456789ABCDEF, 1 << 32, 2**63 + 2),
    ):
        A = blank(4, 9)
        run(far, target, A, np.uint64(seed), np.uint64(seq), np.uint64(off))
        for tx in range(4):
            g = Curand(seed, seq, off + tx)
            assert A[tx].tolist() == [g.word() for _ in range(9)]


@tilec.kernel
def normals(
    F: T.Tensor((5, 64), "float32"), G: T.Tensor((5, 64), "float64"), A: T.Tensor((5, 64), "uint32")
):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding(0)
        T.rng_init(3, tx, 1)
        for k in T.serial(5):
            F[k, tx] = T.rng_rand_float(dist="normal")
            A[k, tx] = T.rng_rand()
            G[k, tx] = T.rng_rand_float(64, "normal")


@pytest.mark.parametrize("target", TARGETS)
def test_normal_numbers_come_in_pairs(target):
    F, G, A = blank(5, 64, dtype="f4"), blank(5, 64, dtype="f8"), blank(5, 64)
    run(normals, target, F, G, A)
    for tx in range(64):
        g = Curand(3, tx, 1)
        for k in range(5):
            assert np.isclose(F[k, tx], g.normal(), **NEAR)
            assert A[k, tx] == g.word()
            assert np.isclose(G[k, tx], g.normal(64), rtol=1e-13, atol=1e-13)


@tilec.kernel
def shared_out(
    A: T.Tensor((2, 3, 7, 15), "uint32"),
    F: T.Tensor((2, 7, 15), "float32"),
    G: T.Tensor((2, 7, 15), "float64"),
    B: T.Tensor((2, 105), "uint32"),
    threads: T.constexpr,
):
    with T.Kernel(2, threads=threads) as bx:
        tx = T.get_thread_binding(0)
        T.rng_init(11, tx * 2, bx * 1000 + tx)
        first = T.rng_rand()
        for k in T.serial(3):
            for i, j in T.Parallel(7, 15):
                A[bx, k, i, j] = T.rng_rand()
        for i, j in T.Parallel(7, 15):
            F[bx, i, j] = T.rng_rand_float(dist="normal")
        for i, j in T.Parallel(7, 15):
            if i != 3:
                G[bx, i, j] = T.rng_rand_float(64) + T.cast(T.rng_rand_float(), "float64")
        if tx == 0:
            B[bx, 0] = first
            B[bx, 1] = T.rng_rand()


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", (1, 32, 100, 128))
def test_iterations_draw_for_the_threads_in_turn(target, threads):
    A, B = blank(2, 3, 7, 15), blank(2, 105)
    F, G = blank(2, 7, 15, dtype="f4"), blank(2, 7, 15, dtype="f8")
    run(shared_out, target, A, F, G, B, threads=threads)
    turns = -(-105 // threads)
    for bx in range(2):
        gs = [Curand(11, 2 * tx, 1000 * bx + tx) for tx in range(threads)]
        starts = [g.at + 1 for g in gs]

        def begin(g_words, gs=gs, starts=starts):
            for g, start in zip(gs, starts):
                g.at, g.spare = start + g_words, {}

        assert B[bx, 0] == gs[0].word()
        for k in range(3):
            begin(k * turns)
            assert [gs[e % threads].word() for e in range(105)] == A[bx, k].reshape(-1).tolist()
        begin(3 * turns)
        want = [gs[e % threads].normal() for e in range(105)]
        assert np.allclose(F[bx].reshape(-1), want, **NEAR)
        begin(3 * turns + turns + turns % 2)
        want = [gs[e % threads].uniform(64) + float(gs[e % threads].uniform()) for e in range(105)]
        want = np.reshape(want, (7, 15))
        want[3] = 0
        assert np.array_equal(G[bx], want)
        begin(3 * turns + turns + turns % 2 + 2 * turns)
        assert B[bx, 1] == gs[0].word()


@T.macro
def seeded(seed, seq):
    T.rng_init(seed, seq)


@tilec.kernel
def by_iteration(A: T.Tensor((50, 4), "uint32"), F: T.Tensor((50, 3), "float32"), n: T.int32):
    with T.Kernel(1, threads=32):
        if n > 3:
            seeded(5, 9)
            if T.get_thread_binding() == 31:
                A[49, 3] = T.rng_rand()
        for i in T.Parallel(49):
            T.rng_init(n, i)
            for k in T.serial(4):
                A[i, k] = T.rng_rand()
            for k in T.serial(3):
                F[i, k] = T.rng_rand_float(dist="normal")


@pytest.mark.parametrize("target", TARGETS)
def test_a_generator_of_an_iteration(target):
    A, F = blank(50, 4), blank(50, 3, dtype="f4")
    run(by_iteration, target, A, F, 4)
    for i in range(49):
        g = Curand(4, i)
        assert A[i].tolist() == [g.word() for _ in range(4)]
        assert np.allclose(F[i], [g.normal() for _ in range(3)], **NEAR)
    assert A[49].tolist() == [0, 0, 0, Curand(5, 9).word()]


@tilec.kernel
def pipelined(A: T.Tensor((4, 64), "float32"), B: T.Tensor((4, 64), "float32")):
    with T.Kernel(1, threads=64):
        T.rng_init(1)
        for k in T.Pipelined(4, num_stages=2):
            s = T.alloc_shared((64,), "float32")
            T.copy(A[k, 0], s)
            for i in T.Parallel(64):
                B[k, i] = s[i] + T.rng_rand_float()


@pytest.mark.parametrize("target", TARGETS)
def test_dropout_in_a_pipeline(target, rng):
    A, B = rng.standard_normal((4, 64)).astype("f4"), blank(4, 64, dtype="f4")
    run(pipelined, target, A, B)
    gs = [Curand(1, tx) for tx in range(64)]
    assert np.array_equal(B, A + np.array([[g.uniform() for g in gs] for _ in range(4)]))


@tilec.kernel
def drawn_by_all(A: T.Tensor((3, 40), "uint32"), n: T.int32):
    with T.Kernel(3, threads=32) as bx:
        tx = T.get_thread_binding()
        T.rng_init(1, tx)
        first = T.alloc_var("uint32", 0)
        if bx + 1 < n:
            first = T.rng_rand()
        for i in T.Parallel(40):
            A[bx, i] = T.rng_rand()
        if first != 0:
            if tx == 3:
                A[bx, 3] = first


@pytest.mark.parametrize("target", TARGETS)
def test_threads_may_draw_together_before(target):
    A = blank(3, 40)
    run(drawn_by_all, target, A, 3)
    for bx in range(3):
        gs = [Curand(1, tx, bx < 2) for tx in range(32)]
        want = [gs[i % 32].word() for i in range(40)]
        want[3] = Curand(1, 3).word() if bx < 2 else want[3]
        assert A[bx].tolist() == want


MISTAKES = {
    "no generator": ("A[0] = T.rng_rand()", "T.rng_rand draws from no generator"),
    "another": (
        'T.rng_init(1, generator="curandStateXORWOW_t")',
        "generator of T.rng_init is the str 'curandStateXORWOW_t', one of cuRAND's that is not",
    ),
    "TileLang's third": (
        'T.rng_init(1, generator="curandStateMRG32k3a_t")',
        "the one that there is",
    ),
    "unknown": ('T.rng_init(1, generator="mt19937")', "generator of T.rng_init is the str"),
    "float seed": ("T.rng_init(0.5)", "seed of T.rng_init is the float 0.5, not an int"),
    "wide": ("T.rng_init(1 << 64)", "which has more than 64 bits"),
    "bit": ("T.rng_init(1); A[0] = T.rng_rand_float(16)", "bit of T.rng_rand_float is the int 16"),
    "dist": (
        'T.rng_init(1); A[0] = T.rng_rand_float(dist="gauss")',
        "dist of T.rng_rand_float is the str 'gauss'",
    ),
    "left": (
        "if bx == 0:\n            T.rng_init(1)\n        A[0] = T.rng_rand()",
        "T.rng_rand draws from no generator",
    ),
    "no seq": (
        "for i in T.Parallel(8):\n            T.rng_init(1)",
        "T.rng_init in T.Parallel .line 9. needs a sequence",
    ),
    "loop inside": (
        "T.rng_init(1)\n        for i in T.Parallel(8):\n            for k in T.serial(2):\n"
        "                A[i] = T.rng_rand()",
        "T.rng_rand stands in a loop inside of T.Parallel .line 10.",
    ),
    "uneven": (
        "T.rng_init(1)\n        if tx < 3:\n            A[tx] = T.rng_rand()\n"
        "        for i in T.Parallel(8):\n            A[i] = T.rng_rand()",
        "threads may have drawn different numbers of words: line 11 does",
    ),
    "memory": (
        "x = T.alloc_var('int32', 0)\n        x = tx * 2\n        T.rng_init(1, x)\n"
        "        for i in T.Parallel(8):\n            A[i] = T.rng_rand()",
        "was given is not computed from indices alone",
    ),
    "carried": (
        "x = T.int32(0)\n        for k in T.serial(4):\n            x = x + tx\n"
        "            T.rng_init(1, x)\n            for i in T.Parallel(8):\n"
        "                A[i] = T.rng_rand()",
        "was given is not computed from indices alone",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_have_their_line(mistake, tmp_path, monkeypatch):
    body, message = MISTAKES[mistake]
    text = (
        "import tilec\nimport tilec.language as T\n\n\n@tilec.kernel\n"
        "def f(A: T.Tensor((64,), 'float32')):\n    with T.Kernel(2, threads=32) as bx:\n"
        f"        tx = T.get_thread_binding()\n        {body}\n"
    )
    (tmp_path / f"random_{mistake.replace(' ', '_')}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    made = __import__(f"random_{mistake.replace(' ', '_')}")
    with pytest.raises(tilec.CompileError, match=message) as found:
        made.f.compile(np.zeros(64, "f4"), target="cpu")
    assert found.value.loc.line >= 9


@pytest.mark.gpu
@pytest.mark.parametrize("threads", (1, 32, 100, 128))
def test_on_a_gpu(torch, threads):
    from test_words_gpu import launch

    found = [blank(2, 3, 7, 15), blank(2, 7, 15, dtype="f4"), blank(2, 7, 15, dtype="f8")]
    found.append(blank(2, 105))
    want = [x.copy() for x in found]
    launch(torch, shared_out, *found, threads=threads)
    shared_out(*want, threads=threads)
    for n in (0, 2, 3):
        assert np.array_equal(found[n], want[n])
    assert np.allclose(found[1], want[1], **NEAR)
    F, G, A = blank(5, 64, dtype="f4"), blank(5, 64, dtype="f8"), blank(5, 64)
    launch(torch, normals, F, G, A)
    for tx in range(64):
        g = Curand(3, tx, 1)
        for k in range(5):
            assert np.isclose(F[k, tx], g.normal(), **NEAR)
            assert A[k, tx] == g.word()
            assert np.isclose(G[k, tx], g.normal(64), rtol=1e-12, atol=1e-12)
