"""Forms of products on an NVIDIA GPU: what `test_forms.py` and `test_scales.py` run thread by
thread, with real sizes; outputs poisoned, compared with float64, repeated bit for bit."""

import pytest

torch = pytest.importorskip("torch")

from form_programs import (  # noqa: E402
    batched,
    batched_one_weight,
    block_scaled,
    grouped,
    product,
    tensor_row_column_scaled,
)
from test_persistent import walking  # noqa: E402
from test_pipelined_order import CHOICES, arranged  # noqa: E402

import tilec  # noqa: E402

pytestmark = pytest.mark.gpu


def random(*shape, dtype=torch.float16, pitch=0, start=0):
    """Random numbers in rows `pitch` elements longer than used, `start` elements from their
    beginning."""
    *outer, columns = shape
    whole = torch.randn(*outer, columns + pitch, device="cuda")
    return whole.to(dtype)[..., start : start + columns]


def check(kernel, arrays, out, want, tolerance, **options):
    """Launch three times into poison; the first result is right, the others equal it."""
    first = None
    for _ in range(3):
        out.fill_(float("nan"))
        kernel(*arrays, **options)
        if first is None:
            first = out.clone()
        assert torch.equal(out, first), "two runs differ"
    assert torch.isfinite(first).all(), "an element was not written"
    error = float((first.double() - want).norm() / want.norm().clamp_min(1e-30))
    assert error < tolerance, f"relative error {error:.2e}"


@pytest.mark.parametrize(("ta", "tb"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(
    ("m", "n", "k", "pitch", "start"),
    [
        (512, 768, 512, 0, 0),
        (1000, 776, 520, 0, 0),
        (1, 72, 50, 0, 0),
        (65, 1, 33, 0, 0),
        (64, 40, 1, 0, 0),
        (65, 64, 0, 0, 0),
        (1, 1, 1, 0, 0),
        (257, 131, 67, 3, 1),
        (256, 256, 256, 8, 4),
    ],
)
def test_products(m, n, k, pitch, start, ta, tb):
    torch.manual_seed(m + n + k)
    a = random(*((k, m) if ta else (m, k)), pitch=pitch, start=start)
    b = random(*((n, k) if tb else (k, n)), pitch=pitch, start=start)
    c = random(m, n, pitch=pitch, start=start)
    want = (a.T if ta else a).double() @ (b.T if tb else b).double()
    check(tilec.kernel(product(bool(ta), bool(tb))), (a, b, c), c, want, 5e-4)


def test_no_rows_or_no_columns():
    kernel = tilec.kernel(product(False, False))
    for m, n, k in ((0, 64, 32), (64, 0, 32), (0, 0, 0)):
        a, b, c = random(m, k), random(k, n), random(m, n)
        for _ in range(3):
            kernel(a, b, c)
    torch.cuda.synchronize()


@pytest.mark.parametrize("gap", [0, 64, 3])
def test_batched(gap):
    torch.manual_seed(gap)

    def batch(rows, columns):
        whole = random(5, rows * columns + gap)
        return whole.as_strided((5, rows, columns), (whole.stride(0), columns, 1))

    a, w, c = batch(200, 136), batch(136, 264), batch(200, 264)
    check(tilec.kernel(batched), (a, w, c), c, a.double() @ w.double(), 5e-4)
    one = random(136, 264)
    check(
        tilec.kernel(batched),
        (a, one.expand(5, -1, -1), c),
        c,
        a.double() @ one.double(),
        5e-4,
    )
    bias, out = torch.randn(264, device="cuda"), torch.empty(5, 200, 264, device="cuda")
    check(
        tilec.kernel(batched_one_weight),
        (a, one.T.contiguous(), bias, out),
        out,
        a.double() @ one.double() + bias.double(),
        2e-5,
    )


@pytest.mark.parametrize("persistent", [True, False], ids=["walking", "searching"])
@pytest.mark.parametrize("transposed", [False, True], ids=["NN", "NT"])
@pytest.mark.parametrize(
    "sizes",
    [
        [700, 0, 1300, 1, 0, 17],
        [512],
        [0, 0, 128, 129, 0],
        [(37 * i) % 90 for i in range(64)],
    ],
    ids=lambda s: f"{len(s)} groups",
)
def test_grouped(sizes, transposed, persistent):
    torch.manual_seed(sum(sizes))
    n, k = 520, 264
    ends = torch.tensor([0, *sizes]).cumsum(0)
    a, b = random(sum(sizes), k), random(len(sizes), k, n)
    c = torch.empty(len(a), n, device="cuda", dtype=torch.float16)
    spans = list(zip(ends.tolist(), ends.tolist()[1:]))
    want = torch.cat([a[s:e].double() @ b[g].double() for g, (s, e) in enumerate(spans)])
    given = b.transpose(1, 2).contiguous() if transposed else b
    kernel = tilec.kernel(grouped(transposed, persistent=persistent))
    options = {"BM": 128, "BN": 128, "BK": 64} if transposed else {}
    options |= {"blocks": 132} if persistent else {}
    offsets = ends.to(torch.int32).cuda()
    check(kernel, (a, given, offsets, c), c, want, 5e-4, **options)


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(512, 512, 1024), (200, 264, 272), (1, 16, 128)])
def test_scales_of_blocks(m, n, k, by_columns):
    torch.manual_seed(m + n)
    blocks, down = -(-k // 128), -(-n // 128)
    a, w = (random(s, k, dtype=torch.float8_e4m3fn) for s in (m, n))
    sa = torch.rand(m, blocks, device="cuda") + 0.5
    sw = torch.rand(down, blocks, device="cuda") + 0.5
    wide_a = a.double() * sa.double().repeat_interleave(128, 1)[:, :k]
    rows = sw.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    want = wide_a @ (w.double() * rows).T
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    given = sa.T.contiguous() if by_columns else sa
    check(tilec.kernel(block_scaled(by_columns)), (a, w, given, sw, c), c, want, 4e-3)


def test_scales_of_tensor_rows_and_columns():
    m, n, k = 200, 264, 272
    a, w = (random(s, k, dtype=torch.float8_e4m3fn) for s in (m, n))
    alpha, rows, columns = (torch.rand(s, device="cuda") + 0.5 for s in (1, m, n))
    want = (a.double() @ w.double().T) * alpha * torch.outer(rows, columns).double()
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    arrays = (a, w, alpha, rows, columns, c)
    check(tilec.kernel(tensor_row_column_scaled()), arrays, c, want, 4e-3)


@pytest.mark.parametrize(("blocks", "stages"), [(132, 4), (7, 2), (1000, 3)])
def test_persistent_by_hand(blocks, stages):
    a, b = random(1000, 328), random(328, 776)
    c = torch.empty(1000, 776, device="cuda", dtype=torch.float16)
    check(tilec.kernel(walking(blocks, stages)), (a, b, c), c, a.double() @ b.double(), 5e-4)


@pytest.mark.parametrize("choice", CHOICES)
def test_order_and_stage_by_hand(choice):
    a, b, bias = random(200, 328), random(328, 264), random(200)
    c = torch.empty(200, 264, device="cuda")
    want = a.double() @ b.double() + 11 * bias.double()[:, None]
    check(tilec.kernel(arranged(*CHOICES[choice])), (a, b, bias, c), c, want, 2e-5)


def test_break_in_a_pipeline():
    a, b, bias = random(200, 328), random(328, 264), random(200)
    c = torch.empty(200, 264, device="cuda")
    want = a[:, :320].double() @ b[:320].double() + 10 * bias.double()[:, None]
    kernel = tilec.kernel(arranged((), (), 3, stop_early=True))
    check(kernel, (a, b, bias, c), c, want, 2e-5)


@pytest.mark.parametrize("odd", [0, 1])
def test_far_apart(odd):
    """Rows and batches more than 2**31 elements from one another."""
    step = 2**30 + 64 + odd
    whole = torch.zeros(3 * step + 64, device="cuda", dtype=torch.float16)
    a = whole.as_strided((4, 40), (step, 1))
    a.copy_(torch.randn(4, 40))
    b = random(40, 72)
    c = torch.empty(4, 72, device="cuda", dtype=torch.float16)
    kernel = tilec.kernel(product(False, False))
    check(kernel, (a, b, c), c, a.double() @ b.double(), 5e-4)
    step = 2**31 + 64 + odd
    x = whole.as_strided((2, 30, 40), (step - 1024, 40, 1))
    x.copy_(torch.randn(2, 30, 40))
    w, out = random(2, 40, 72), torch.empty(2, 30, 72, device="cuda", dtype=torch.float16)
    check(tilec.kernel(batched), (x, w, out), out, x.double() @ w.double(), 5e-4)
