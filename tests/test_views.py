"""T.reshape and T.view: the memory of a buffer as another one."""

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
M = T.dynamic("M")


def random(*shape, dtype="float32"):
    rng = np.random.default_rng(11)
    if dtype.startswith("float"):
        return rng.integers(-3, 4, shape).astype(dtype)
    return rng.integers(0, 250, shape).astype(dtype)


@tilec.kernel
def shared(A: T.Tensor((960,), "float32"), B: T.Tensor((30, 32), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((960,), "float32")
        T.copy(A, s)
        T.copy(T.reshape(s, (30, 32)), B)


@tilec.kernel
def fragment(A: T.Tensor((960,), "float32"), B: T.Tensor((30, 32), "float32")):
    with T.Kernel(1, threads=128):
        f = T.alloc_fragment((960,), "float32")
        T.copy(A, f)
        v = T.reshape(f, (30, 32))
        for i, j in T.Parallel(30, 32):
            v[i, j] = v[i, j] * 2 + j
        T.copy(v, B)


@tilec.kernel
def rows(A: T.Tensor((960,), "float32"), B: T.Tensor((30,), "float32")):
    with T.Kernel(1, threads=128):
        f = T.alloc_fragment((960,), "float32")
        r = T.alloc_fragment((30,), "float32")
        T.copy(A, f)
        T.reduce_sum(T.reshape(f, (30, 32)), r, dim=1)
        T.copy(r, B)


@tilec.kernel
def more_dimensions(A: T.Tensor((4, 240), "float32"), B: T.Tensor((4,), "float32")):
    """A reduction names a dimension that the buffer does not have."""
    with T.Kernel(1, threads=128):
        f = T.alloc_fragment((4, 240), "float32")
        r = T.alloc_fragment((1, 4, 1), "float32")
        T.copy(A, f)
        T.reduce_absmax(T.reshape(f, (1, 4, 240)), r, dim=2)
        T.copy(T.reshape(r, (4,)), B)


@tilec.kernel
def tensors(A: T.Tensor((24, 40), "float32"), B: T.Tensor((960,), "float32")):
    """Tiles of 16 rows end behind the 30 of the view, and columns of 24 behind its 32."""
    with T.Kernel(2, 2, threads=128) as (bx, by):
        s = T.alloc_shared((16, 24), "float32")
        T.copy(T.reshape(A, (30, 32))[bx * 16, by * 24], s)
        T.copy(s, T.reshape(B, (30, 32))[bx * 16, by * 24])


@tilec.kernel
def sized(A: T.Tensor((M, 4, 8), "float32"), B: T.Tensor((M, 32), "float32")):
    with T.Kernel(T.ceildiv(M, 16), threads=64) as bx:
        s = T.alloc_shared((16, 32), "float32")
        T.copy(T.reshape(A, (M, 32))[bx * 16, 0], s)
        T.copy(s, B[bx * 16, 0])


@tilec.kernel
def product(
    A: T.Tensor((64, 192), "float16"),
    B: T.Tensor((192, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    """One operand lies in a buffer with a leading 1, the other is flat."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((1, 64, 64), "float16")
        b = T.alloc_shared((4096,), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * 64], T.reshape(a, (64, 64)))
            T.copy(B[k * 64, 0], T.reshape(b, (64, 64)))
            T.gemm(T.reshape(a, (64, 64)), T.reshape(b, (64, 64)), acc)
        T.copy(acc, C)


@tilec.kernel
def bytes_of_words(A: T.Tensor((256,), "uint8"), B: T.Tensor((64,), "uint32"), C: T.Tensor((128,), "float16")):  # fmt: skip # noqa: E501
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((64,), "uint32")
        n = T.view(s, (256,), "uint8")
        for i in T.Parallel(256):
            n[i] = A[i]
        for i in T.Parallel(64):
            s[i] = s[i] + T.uint32(1)
        T.copy(s, B)
        T.copy(T.view(s, (128,), T.float16), C)


@tilec.kernel
def own_bytes(A: T.Tensor((256,), "uint32"), B: T.Tensor((4, 256), "uint8")):
    with T.Kernel(1, threads=256):
        tx = T.get_thread_binding(0)
        own = T.alloc_local((1,), "uint32")
        own[0] = A[tx]
        v = T.view(T.view(own, (2,), "uint16"), (4,), "uint8")
        for k in T.serial(4):
            B[k, tx] = v[k]


@tilec.kernel
def tensor_words(A: T.Tensor((64, 4), "uint8"), B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        f = T.alloc_fragment((64,), "int32")
        T.copy(T.view(A, (64,), "int32"), f)
        for i in T.Parallel(64):
            f[i] += 1
        T.copy(f, B)


@tilec.kernel
def counts(A: T.Tensor((64,), "int32"), B: T.Tensor((12,), "int32")):
    with T.Kernel(1, threads=64):
        v = T.reshape(B, (3, 4))
        for i in T.Parallel(64):
            T.atomic_add(v[A[i] % 3, A[i] // 3 % 4], 1)


def words(u):
    return u.view("uint32") + 1


@tilec.kernel
def counted(A: T.Tensor((M, 6), "int32"), B: T.Tensor((M, 6), "int32")):
    """A first extent that is arithmetic on a size: elements, and whole tiles."""
    with T.Kernel(T.ceildiv(M * 6, 64), threads=64) as b:
        a, out = T.view(A, (M * 6,)), T.reshape(B, (M * 6,))
        s = T.alloc_shared((64,), "int32")
        T.copy(a[b * 64], s)
        for i in T.Parallel(64):
            if b * 64 + i < M * 6:
                s[i] += a[M * 6 - 1 - b * 64 - i]
        T.copy(s, out[b * 64])


@tilec.kernel
def merged(
    A: T.Tensor((64, 32), "float16"),
    R: T.Tensor((4, 64), "float16"),
    B: T.Tensor((64, 32), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    """(steps, ranks, numbers) as rows of a product, and its sum as them again: recurrences of
    several ranks."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((64, 32), "float16")
        f = T.alloc_fragment((16, 4, 32), "float16")
        more = T.alloc_fragment((16, 4, 64), "float32")
        weights = T.alloc_fragment((4, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.copy(R, weights)
        T.copy(T.view(A, (16, 4, 32)), f)
        for i, r, n in T.Parallel(16, 4, 32):
            f[i, r, n] *= r + 1
        T.copy(T.view(f, (64, 32)), a)
        T.copy(B, b)
        T.gemm(a, b, acc, transpose_B=True, clear_accum=True)
        by_rank = T.view(acc, (16, 4, 64))
        for i, r, n in T.Parallel(16, 4, 64):
            more[i, r, n] = by_rank[i, r, n] * weights[r, n]
            by_rank[i, r, n] += i
        sums = T.view(more, (64, 64))
        for i, n in T.Parallel(64, 64):
            acc[i, n] += sums[i, n]
        T.copy(acc, C)


def merged_wanted():
    by_rank = a64.reshape(16, 4, 32) * np.arange(1, 5)[:, None]
    found = (by_rank.reshape(64, 32).astype("f4") @ b64.astype("f4").T).reshape(16, 4, 64)
    found = found * (1 + r64.astype("f4")) + np.arange(16)[:, None, None]
    return found.reshape(64, 64).astype("f4")


a64, b64 = random(64, 32, dtype="float16"), random(64, 32, dtype="float16")
r64 = random(4, 64, dtype="float16")
x, y, u, z = random(960), random(24, 40), random(256, dtype="uint8"), random(256, dtype="uint32")
a, b = random(64, 192, dtype="float16"), random(192, 64, dtype="float16")
m, n = random(21, 4, 8), random(64, dtype="int32")
k = random(37, 6, dtype="int32")
PROGRAMS = {
    "shared": (shared, (x,), x.reshape(30, 32)),
    "fragment": (fragment, (x,), 2 * x.reshape(30, 32) + np.arange(32)),
    "reduction": (rows, (x,), x.reshape(30, 32).sum(1)),
    "more dimensions": (more_dimensions, (x.reshape(4, 240),), abs(x.reshape(4, 240)).max(1)),
    "tensors": (tensors, (y,), y.ravel()),
    "a size": (sized, (m,), m.reshape(21, 32)),
    "counted": (counted, (k,), k + k.ravel()[::-1].reshape(37, 6)),
    "product": (product, (a, b), a.astype("f4") @ b.astype("f4")),
    "merged dimensions": (merged, (a64, r64, b64), merged_wanted()),
    "bytes": (bytes_of_words, (u, np.zeros(64, "uint32")), words(u).view("float16")),
    "local": (own_bytes, (z,), z.view("uint8").reshape(256, 4).T),
    "wide": (tensor_words, (u.reshape(64, 4),), u.view("int32") + 1),
    "atomics": (counts, (n,), np.bincount(n % 3 * 4 + n // 3 % 4, minlength=12)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_views(program, target):
    kernel, given, wanted = PROGRAMS[program]
    kinds = {"fragment": "float32", "atomics": "int32", "wide": "int32"}
    out = np.zeros(wanted.shape, kinds.get(program, wanted.dtype))
    if target == "cpu":
        kernel(*given, out)
    else:
        compiled = kernel.compile(*given, out, target=target)
        assert "= view" not in compiled.stages["tile"]
        report = tilec.simulate(kernel, *given, out, target=target)
        assert report.ok, report
    np.testing.assert_array_equal(out.view("uint8"), wanted.astype(out.dtype).view("uint8"))


def test_a_box_of_a_view_stays_a_copy():
    made = product.compile(a, b, np.zeros((64, 64), "f4"), target="cuda:sm_90a")
    text = made.stages["tile"]
    assert text.count("copy %") == 2  # of A and of C; the flat operand is moved by elements
    made = sized.compile(m, random(21, 32), target="cuda:sm_90a")
    assert made.stages["tile"].count("parallel") == 1  # elements of inner dimensions that merge


def test_a_fragment_is_kept_as_its_view_of_fewest_dimensions():
    """All of them in registers: an index may number several of a loop's."""
    made = merged.compile(a64, r64, b64, np.zeros((64, 64), "f4"), target="cuda:sm_90a")
    assert {*made.resources.buffers} == {"a", "b", "C_staging"}
    assert (
        "fragment<64x32xf16" in made.stages["tile"] and "fragment<16x4" not in made.stages["tile"]
    )


def test_a_write_through_a_view_is_seen_by_the_launch():
    @tilec.kernel
    def fill(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=64):
            v = T.reshape(A, (64,))
            for i in T.Parallel(64):
                v[i] = i

    a = np.zeros((8, 8), "float32")
    a.flags.writeable = False
    with pytest.raises(tilec.LaunchError, match="read-only"):
        fill(a)


WRONG = {
    "elements": ("T.reshape(A, (9, 8))", "has 2304 bits, A 2048"),
    "bits": ("T.view(A, dtype='float16')", "has 1024 bits, A 2048"),
    "extent": ("T.reshape(A, (8, -8))", "an extent of T.reshape is"),
    "an inner extent": ("T.view(A, (1, T.get_thread_binding()))", "the first extent of a"),
    "nibbles": ("T.view(A, (512, 1), 'int4')", "elements of four bits come in pairs"),
    "no buffer": ("T.reshape(3, (8,))", "not a buffer"),
    "dtype": ("T.view(A, (8, 8), 'nothing')", "is not a dtype"),
    "a part of an element": ("T.view(A, (256,), 'uint8')[0] = T.uint8(1)", "elements of float32"),
    "an atomic": ("T.atomic_add(T.view(A, (64,), 'int32')[0], 1)", "an atomic on a view"),
}


@pytest.mark.parametrize("line, says", WRONG.values(), ids=WRONG)
def test_wrong_views(line, says, tmp_path):
    text = f"""
import tilec, tilec.language as T
@tilec.kernel
def wrong(A: T.Tensor((8, 8), "float32")):
    with T.Kernel(1, threads=64):
        {line}
"""
    file = tmp_path / "wrong.py"
    file.write_text(text)
    names: dict = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=says) as caught:
        names["wrong"].compile(np.zeros((8, 8), "float32"), target="cpu")
    assert caught.value.loc.line == 6


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS)
def test_views_on_a_gpu(program):
    torch = pytest.importorskip("torch")
    kernel, given, wanted = PROGRAMS[program]
    kinds = {"fragment": "float32", "atomics": "int32", "wide": "int32"}
    out = np.zeros(wanted.shape, kinds.get(program, wanted.dtype))
    there = [torch.from_numpy(g.copy()).cuda() for g in (*given, out)]
    for _ in range(20):
        there[-1].zero_()
        kernel(*there)
        found = there[-1].cpu().numpy()
        np.testing.assert_array_equal(found.view("uint8"), wanted.astype(out.dtype).view("uint8"))


@tilec.kernel
def other_rank(
    A: T.Tensor((6, 40), "float32"), B: T.Tensor((6, 40), "float32"), C: T.Tensor((6,), "float32")
):
    """The dimension of a word is the view's."""
    with T.Kernel(6, threads=64) as bx:
        s = T.alloc_shared((40,), "float32")
        f = T.alloc_fragment((40,), "float32")
        r = T.alloc_fragment((1,), "float32")
        T.copy(A[bx, 0], s)
        T.copy(s, f)
        T.reduce_sum(T.reshape(f, (1, 40)), r, dim=1)
        T.cumsum(T.view(s, (1, 40)), dim=1)
        T.cumsum(T.reshape(s, (1, 40)), T.reshape(f, (1, 40)), dim=1, reverse=True)
        T.copy(f, B[bx, 0])
        C[bx] = r[0]


@tilec.kernel
def product_views(
    A: T.Tensor((32, 64), "float16"),
    B: T.Tensor((64, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    """All operands, and the sum, are views."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((1, 32, 64), "float16")
        b = T.alloc_shared((2048,), "float16")
        c = T.alloc_fragment((1024,), "float32")
        T.copy(A, a)
        T.copy(B, T.reshape(b, (64, 32)))
        T.clear(c)
        T.gemm(T.reshape(a, (32, 64)), T.reshape(b, (64, 32)), T.reshape(c, (32, 32)))
        T.copy(T.reshape(c, (32, 32)), C)


@pytest.mark.parametrize("target", TARGETS)
def test_words_on_views_of_another_rank(target):
    a, b, c = random(6, 40), np.zeros((6, 40), np.float32), np.zeros(6, np.float32)
    run_compiled(other_rank, target, a, b, c)
    assert np.array_equal(c, a.sum(1))
    assert np.array_equal(b, np.cumsum(np.cumsum(a, 1)[:, ::-1], 1)[:, ::-1])
    a, b, c = random(32, 64), random(64, 32), np.zeros((32, 32), np.float32)
    run_compiled(product_views, target, a.astype(np.float16), b.astype(np.float16), c)
    assert np.array_equal(c, a @ b)


def planes(boxes: bool) -> tilec.Kernel:
    """A product over the channels of each pixel: rows of 72 pixels, of 64 weights."""

    @tilec.kernel
    def product(
        A: T.Tensor((4, 512, 6, 12), "float16"),
        W: T.Tensor((64, 8, 8, 8), "float16"),
        O: T.Tensor((4, 64, 6, 12), "float32"),
    ):
        with T.Kernel(2, 4, threads=128) as (b, n):
            if boxes:
                T.annotate_schedule(specialise=True)
            pixels, weights = T.reshape(A, (4, 512, 72)), T.reshape(W, (64, 512))
            w, s = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            o = T.alloc_fragment((64, 64), "float32")
            T.clear(o)
            for k in T.Pipelined(16, num_stages=2):
                T.copy(weights[0, k * 32], w)
                T.copy(pixels[n, k * 32, b * 64], s)
                T.gemm(w, s, o)
            T.copy(o, T.reshape(O, (4, 64, 72))[n, 0, b * 64])

    return product


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_has_the_shape_of_its_views(target):
    """Each element's place was divided by the tensor's extents, and no row of 12 elements was
    brought by TMA: TileOPs' conv2d of 1x1."""
    a, w = random(4, 512, 6, 12, dtype="float16"), random(64, 8, 8, 8, dtype="float16")
    o = np.zeros((4, 64, 6, 12), "float32")
    kernel = planes(boxes=target == "cuda:sm_90a")
    run_compiled(kernel, target, a, w, o)
    want = w.reshape(64, 512).astype(float) @ a.reshape(4, 512, 72).astype(float)
    assert np.array_equal(o.reshape(4, 64, 72), want)
    if target == "cuda:sm_90a":
        made = kernel.compile(a, w, o, target=target)
        assert "%A: global<4x512x72xf16, strides=[36864, 72, 1]> = tensor A" in made.stages["tile"]
        assert "view=4x512x72" in made.stages["lower_parallel"]  # of the descriptor
        assert "ahead: s, by tma" in made.stages["plan"]
        assert all(op not in made.stages["tile"] for op in ("floordiv", "mod"))


def test_a_tensor_that_is_used_as_it_is_keeps_its_shape():
    @tilec.kernel
    def both(A: T.Tensor((64, 64), "float32"), B: T.Tensor((2, 64, 64), "float32")):
        with T.Kernel(1, threads=128):
            T.copy(A, B[0, 0, 0])
            T.copy(T.reshape(A, (32, 128)), T.reshape(B, (2, 32, 128))[1, 0, 0])

    a, b = random(64, 64), np.zeros((2, 64, 64), "float32")
    for target in TARGETS:
        b[:] = 0
        run_compiled(both, target, a, b)
        assert np.array_equal(b, np.stack([a, a]))
    assert "%A: global<64x64xf32" in both.compile(a, b, target="cuda:sm_90a").stages["tile"]


def test_a_tensor_with_gaps_keeps_its_shape():
    @tilec.kernel
    def turned(A: T.StridedTensor((8, 16), (32, 1), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            v = T.reshape(A, (128,))
            for i in T.Parallel(128):
                B[i] = v[i]

    a, b = random(8, 32)[:, :16], np.zeros(128, "float32")
    for target in TARGETS:
        b[:] = 0
        run_compiled(turned, target, a, b)
        assert np.array_equal(b, a.reshape(-1))


def rows_of_a_fragment(used: bool) -> tilec.Kernel:
    @tilec.kernel
    def added(A: T.Tensor((4, 16, 64), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            f = T.alloc_fragment((4, 16, 64), "float32")
            v = T.reshape(f, (64, 64))
            for p in T.unroll(4):
                T.copy(A[p, 0:16, 0:64], f[p, 0:16, 0:64])
                for i, j in T.Parallel(16, 64):
                    f[p, i, j] += p
                if used:
                    T.copy(v[p * 16 : p * 16 + 16, 0:64], B[p * 16, 0])
                else:
                    T.copy(f[p, 0:16, 0:64], B[p * 16, 0])

    return added


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.filterwarnings("error::tilec.CompileWarning")
def test_parts_of_a_fragment_stay_apart(target, used):
    """Four fragments, where its view of two dimensions, or one that nothing uses, would be kept in
    shared memory."""
    a, b = random(4, 16, 64), np.zeros((64, 64), "float32")
    run_compiled(rows_of_a_fragment(used), target, a, b)
    assert np.array_equal(b.reshape(a.shape), a + np.arange(4)[:, None, None])
