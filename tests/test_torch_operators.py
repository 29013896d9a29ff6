"""`tilec.torch.register`: kernels as operators of torch, under everything torch does with one."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import tilec
import tilec.language as T

torch = pytest.importorskip("torch")
forward_ad = torch.autograd.forward_ad

B, K, M, N = T.dynamic("B, K, M, N")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@tilec.kernel
def double(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), BN: T.constexpr = 32):
    with T.Kernel(T.ceildiv(N, BN), M, threads=32) as (bx, by):
        for j in T.Parallel(BN):
            Y[by, bx * BN + j] = X[by, bx * BN + j] * 2


@tilec.kernel
def scale(
    X: T.Tensor((M, N), "float64"),
    Y: T.Tensor((M, N), "float64"),
    by: T.float64 = 2.0,
    flip: T.constexpr = False,
    BN: T.constexpr = 32,
):
    with T.Kernel(T.ceildiv(N, BN), M, threads=32) as (bx, row):
        for j in T.Parallel(BN):
            Y[row, bx * BN + j] = X[row, bx * BN + j] * (-by if flip else by)


@tilec.kernel(out=["dX"])
def scale_gradient(
    dY: T.Tensor((M, N), "float64"),
    dX: T.Tensor((M, N), "float64"),
    by: T.float64 = 2.0,
    flip: T.constexpr = False,
):
    with T.Kernel(T.ceildiv(N, 32), M, threads=32) as (bx, row):
        for j in T.Parallel(32):
            dX[row, bx * 32 + j] = dY[row, bx * 32 + j] * (-by if flip else by)


@tilec.kernel(out=["C"])
def product(
    A: T.Tensor((M, K), "float32"),
    B: T.Tensor((K, N), "float32"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr = T.auto,
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, BM), threads=128) as (bx, by):
        a = T.alloc_shared((BM, 16), "float32")
        b = T.alloc_shared((16, 32), "float32")
        c = T.alloc_fragment((BM, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 16)):
            T.copy(A[by * BM, k * 16], a)
            T.copy(B[k * 16, bx * 32], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * BM, bx * 32])


@tilec.kernel
def pairs(X: T.Tensor((N,), "float32"), n: T.int32):
    """Two results of the body's own, one of a computed length."""
    sums = T.empty((N // 2,), "float32")
    first = T.empty((1,), "int32")
    with T.Kernel(T.ceildiv(N // 2, 32), threads=32) as b:
        for i in T.Parallel(32):
            if b * 32 + i < N // 2:
                sums[b * 32 + i] = X[2 * (b * 32 + i)] + X[2 * (b * 32 + i) + 1]
        first[0] = n
    return sums, first


@tilec.kernel
def on_grid(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"), BN: T.constexpr = 32):
    i = T.get_block_binding() * BN + T.get_thread_binding()
    if i < N:
        Y[i] = X[i] + 1


@tilec.kernel
def rescale(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
    """Two launches: the second writes what the first has read."""
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            Y[b * 32 + i] = X[b * 32 + i] * 2
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            X[b * 32 + i] = Y[b * 32 + i] + 1


def product_gradient(ctx: Any, d: Any) -> Any:
    a, b, _ = ctx.saved_tensors
    return PRODUCT(d, b.T), PRODUCT(a.T, d), None


register = tilec.torch.register
DOUBLE = register(double, "tilec_tests::double")
BACK = register(scale_gradient, "tilec_tests::scale_gradient")
SCALE = register(scale, "tilec_tests::scale", out=["Y"], backward=BACK)
PRODUCT = register(product, "tilec_tests::product", backward=product_gradient)
PAIRS = register(pairs, "tilec_tests::pairs")
ON_GRID = register(
    on_grid, "tilec_tests::on_grid", out=["Y"], constants={"BN": 64},
    grid=lambda given: (T.cdiv(given["X"].shape[0], given["BN"]),),
)  # fmt: skip
RESCALE = register(rescale, "tilec_tests::rescale")


def randn(*shape: int, dtype: Any = None, device: str = "cpu") -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype or torch.float32, generator=generator).to(device)


def doubled(x: Any) -> Any:
    y = torch.empty_like(x)
    DOUBLE(x, y)
    return y


def rescaled(x: Any) -> Any:
    x, y = x.clone(), torch.empty_like(x)
    RESCALE(x, y)
    return x + y


# An operator, arguments for it, what calls it, and the same in torch.
CASES: dict[str, tuple[Any, Callable[[str], tuple[Any, ...]], Callable[..., Any], Any]] = {
    "mutates": (
        DOUBLE, lambda d: (randn(5, 70, device=d), randn(5, 70, device=d)),
        lambda x, y: doubled(x), lambda x, y: x * 2,
    ),
    "scalars": (
        SCALE, lambda d: (randn(5, 70, dtype=torch.float64, device=d), 3.0, True),
        SCALE, lambda x, by, flip: x * -3.0,
    ),
    "auto": (
        PRODUCT, lambda d: (randn(50, 30, device=d), randn(30, 40, device=d)),
        PRODUCT, lambda a, b: (a.double() @ b.double()).float(),
    ),
    "strided": (
        PRODUCT, lambda d: (randn(30, 50, device=d).T, randn(30, 1, device=d).expand(30, 40), 64),
        PRODUCT, lambda a, b, bm: (a.double() @ b.double()).float(),
    ),
    "made in the body": (
        PAIRS, lambda d: (randn(75, device=d), 7),
        PAIRS, lambda x, n: (x[:74:2] + x[1:74:2], x.new_full((1,), 7, dtype=torch.int32)),
    ),
    "grid": (ON_GRID, lambda d: (randn(75, device=d),), ON_GRID, lambda x: x + 1),
    "one element": (ON_GRID, lambda d: (randn(1, device=d),), ON_GRID, lambda x: x + 1),
    "several kernels": (
        RESCALE, lambda d: (randn(75, device=d), randn(75, device=d)),
        lambda x, y: rescaled(x), lambda x, y: 4 * x + 1,
    ),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_operators(case: str, device: str) -> None:
    """torch's own check of the schema, the fake and autograd; the numbers, eager and compiled."""
    operator, arguments, call, want = CASES[case]
    args = arguments(device)
    assert not operator.overload._schema.is_mutable or operator.mutates
    results = torch.library.opcheck(operator.overload, args)
    assert set(results.values()) == {"SUCCESS"}
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for f in (call, compiled, compiled):
        torch.testing.assert_close(f(*args), want(*args), rtol=2e-3, atol=2e-3)
    meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
    shapes = [x.shape for x in _several(operator(*meta))]
    assert shapes == [x.shape for x in _several(operator(*args))]


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def test_schemas() -> None:
    found = {
        str(op.overload._schema).partition("::")[2] for op in (DOUBLE, SCALE, PRODUCT, ON_GRID)
    }
    assert found == {
        "double(Tensor X, Tensor(a1!) Y, int BN=32) -> ()",
        "scale(Tensor X, float by=2., bool flip=False, int BN=32) -> Tensor",
        "product(Tensor A, Tensor B, int? BM=None) -> Tensor",
        "on_grid(Tensor X) -> Tensor",
    }
    assert RESCALE.mutates == {"X", "Y"} and PAIRS.outputs == ("sums", "first")
    assert "SymInt n" in str(PAIRS.overload._schema)


@pytest.mark.parametrize("device", DEVICES)
def test_a_tuned_kernel(device: str) -> None:
    configs = [{"BN": 32}, {"BN": 64}]
    tuned = tilec.autotune(scale, configs=configs, executor=ThreadPoolExecutor(1))
    operator = register(tuned, "tilec_tests::tuned", out=["Y"], constants={"flip": True})
    assert str(operator.overload._schema).endswith("tuned(Tensor X, float by=2.) -> Tensor")
    x = randn(3, 70, dtype=torch.float64, device=device)
    assert torch.equal(operator(x, 3.0), x * -3) and torch.equal(operator(x), x * -2)
    (found,) = operator._launched.results
    assert {t.config["BN"] for t in found.trials} == {32, 64}


@tilec.kernel(enable_fp_fusion=False)
def rounded_twice(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            Y[b * 32 + i] = X[b * 32 + i] * X[b * 32 + i] - (1 + 2**-11)


def test_an_operator_keeps_what_the_decorator_says() -> None:
    """What `register` adds are outputs; once rounded, the result would be 2**-24."""
    operator = register(rounded_twice, "tilec_tests::rounded_twice", out=["Y"])
    assert not operator(torch.full((40,), 1 + 2**-12)).any()


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_by_an_operator(device: str) -> None:
    x = randn(3, 40, dtype=torch.float64, device=device).requires_grad_()
    for flip in (False, True):
        assert torch.autograd.gradcheck(lambda x, f=flip: SCALE(x, 1.5, f), (x,))
    SCALE(x, 3.0).sum().backward()  # the gradient that comes is one element, expanded
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_by_a_function(device: str) -> None:
    a, b = (randn(*s, device=device).requires_grad_() for s in ((50, 30), (30, 40)))
    c, d = (t.detach().double().requires_grad_() for t in (a, b))
    (PRODUCT(a, b) ** 2).sum().backward()
    ((c @ d) ** 2).sum().backward()
    for mine, theirs in ((a, c), (b, d)):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=2e-2)


class Product(torch.nn.Module):
    """A layer whose operator is one of its attributes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(inputs)
        start = torch.randn(inputs, outputs, generator=generator) / inputs**0.5
        self.weight, self.operator = torch.nn.Parameter(start), PRODUCT

    def forward(self, x: Any) -> Any:
        return self.operator(x, self.weight)


def network() -> Any:
    return torch.nn.Sequential(Product(8, 32), torch.nn.Tanh(), Product(32, 1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_a_module_learns(device: str, compiled: bool) -> None:
    torch._dynamo.reset()
    model = network().to(device)
    x = randn(64, 8, device=device)
    y = (x[:, :1] * x[:, 1:2]).tanh()
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(80):
        optimiser.zero_grad()
        loss = ((run(x) - y) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.2 * losses[0]


def test_modules_are_copied_and_saved() -> None:
    model, x = network(), randn(4, 8)
    twin = copy.deepcopy(model)
    assert twin[0].operator is PRODUCT and twin[0].weight is not model[0].weight
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(x), model(x)) and torch.equal(twin(x), model(x))


def test_operators_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(SCALE)) is SCALE
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).name)"
    data = pickle.dumps(SCALE)
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        input=data, capture_output=True,
    )  # fmt: skip
    assert found.stdout.split() == [b"tilec_tests::scale"], found.stderr.decode()


# --- torch.compile ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_dynamic_shapes_are_compiled_once() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda a, b: PRODUCT(a, b) + 1, backend=counter, fullgraph=True)
    for m in (33, 50, 7, 64):
        a, b = randn(m, 30), randn(30, 40)
        torch._dynamo.mark_dynamic(a, 0)
        torch.testing.assert_close(compiled(a, b), a @ b + 1, rtol=1e-3, atol=1e-3)
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore")
def test_sizes_that_disagree_are_refused_while_tracing() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(PRODUCT.overload, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"B: dimension 0: expected K = 30 .*, got 31"):
        compiled(randn(5, 30), randn(31, 4))


@pytest.mark.filterwarnings("ignore")
def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return PRODUCT(x, x.T) + doubled(x[:, :5])

    x = randn(5, 6)
    program = torch.export.export(Model(), (x,))
    assert "tilec_tests.product" in str(program.graph)
    torch.testing.assert_close(program.module()(x), x @ x.T + 2 * x[:, :5], rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("eager_calls", [0, 1, 3])
def test_a_kernel_itself_breaks_the_graph(eager_calls: int) -> None:
    """Inside torch.compile a kernel runs as it does outside, whoever was first; torch says what to
    do where the graph must not break."""
    kernel = tilec.kernel(double.function)

    def function(x: Any) -> Any:
        y = torch.empty_like(x)
        kernel(x + 1, y)
        return y + 1

    x = randn(4, 32)
    torch._dynamo.reset()
    for _ in range(eager_calls):
        function(x)
    with pytest.raises(Exception, match=r"tilec\.torch\.register\(kernel, …\)"):
        torch.compile(function, backend="eager", fullgraph=True)(x)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(function, backend=counter)
    for _ in range(3):
        assert torch.equal(compiled(x), (x + 1) * 2 + 1)
    graphs = counter.frame_count
    compiled(x)
    assert graphs == counter.frame_count == 2, "nothing of tilec is compiled by torch"


def test_vmap_is_refused() -> None:
    with pytest.raises(tilec.LaunchError, match=r"tilec_tests::scale .*vmap(.*\n)+.*dimension"):
        torch.vmap(SCALE)(randn(2, 3, 40, dtype=torch.float64))
    with pytest.raises(tilec.LaunchError, match=r"X has .* a batch of torch\.vmap(.*\n)+.*loop"):
        torch.vmap(lambda x: double(x, torch.empty(3, 40)))(randn(2, 3, 40))


def test_transforms_are_refused() -> None:
    """torch takes forward derivatives of a library's operators to be zero, without a word."""
    x = randn(3, 40, dtype=torch.float64)
    refused = "no derivative forward(.*\\n)+.*torch.autograd.grad"
    with pytest.raises(tilec.LaunchError, match=refused):
        torch.func.jvp(SCALE, (x,), (x,))
    with pytest.raises(tilec.LaunchError, match=refused):
        torch.func.jacfwd(SCALE)(x)
    with forward_ad.dual_level():
        assert torch.equal(SCALE(x), 2 * x), "what has no tangent may be passed"
        with pytest.raises(tilec.LaunchError, match=refused):
            SCALE(forward_ad.make_dual(x, x))
    with pytest.raises(tilec.LaunchError, match=r"through torch\.func(.*\n)+.*autograd\.grad"):
        torch.func.grad(lambda x: SCALE(x).sum())(x)


# --- mistakes -----------------------------------------------------------------------------------


def line_of(error: pytest.ExceptionInfo[tilec.TilecError]) -> str:
    assert error.value.loc is not None and error.value.loc.file == __file__
    assert error.value.hint
    return error.value.loc.source_line()


def test_calls_that_do_not_fit() -> None:
    x = randn(3, 40)
    with pytest.raises(
        tilec.LaunchError, match="argument 1: X: expected float64, got float32"
    ) as e:
        SCALE(x)
    assert "SCALE(x)" in line_of(e)
    with pytest.raises(tilec.LaunchError, match=r"scale\(\) .*'X'.*ndarray") as e:
        SCALE(x.numpy())
    assert "SCALE(x.numpy())" in line_of(e) and "(X, by, flip, BN)" in e.value.hint
    with pytest.raises(
        tilec.LaunchError, match=r"double\(\) is missing value for argument 'Y'"
    ) as e:
        DOUBLE(x)
    assert "DOUBLE(x)" in line_of(e)
    with pytest.raises(tilec.LaunchError, match="dimension 1: expected N = 40") as e:
        DOUBLE(x, x[:, 1:])
    assert "x[:, 1:]" in line_of(e)
    with pytest.raises(tilec.LaunchError, match="Unknown keyword argument 'Z'") as e:
        DOUBLE(x, x, Z=x)
    assert "Z=x" in line_of(e) and "(X, Y, BN)" in e.value.hint


@tilec.kernel
def any_rank(X: T.Tensor, Y: T.Tensor):
    with T.Kernel(1, threads=32):
        Y[0] = X[0]


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "function": (lambda: register(double.function), "takes a kernel, not", "@tilec.kernel"),
    "name": (lambda: register(double, "double"), "cannot be called 'double'", "mylib::double"),
    "keyword": (lambda: register(double, "a::for"), "cannot be called 'a::for'", "mylib::double"),
    "torch's": (lambda: register(double, "aten::add"), "cannot be called", "mylib::double"),
    "taken": (
        lambda: register(double, "tilec_tests::scale"),
        "tilec_tests::scale is an operator already, of the kernel scale", "mylib::double_2",
    ),
    "out": (lambda: register(double, "a::b", out=["Z"]), "out names 'Z'", "X, Y"),
    "string": (lambda: register(double, "a::b", mutates="Y"), "is 'Y', not a list", "['Y']"),
    "less": (
        lambda: register(double, "a::b", mutates=["X"]), "writes Y, which mutates does not name",
        "mutates=['X', 'Y']",
    ),
    "both": (
        lambda: register(product, "a::b", out=["A"]), "allocates C by its own decorator", "not in",
    ),
    "constant": (
        lambda: register(double, "a::b", constants={"BM": 4}),
        "no compile-time parameter of double", "BN",
    ),
    "gradient of a write": (
        lambda: register(double, "a::b", backward=BACK), "writes Y: autograd", "out=",
    ),
    "backward": (
        lambda: register(double, "a::b", out=["Y"], backward=3), "backward is 3", "function of",
    ),
    "backward that takes more": (
        lambda: register(double, "a::b", out=["Y"], backward=PRODUCT),
        "product takes A, which is nothing of a::b", "dY",
    ),
    "backward that returns more": (
        lambda: register(scale, "a::b", out=["Y"], backward=SCALE),
        "scale returns Y, which is no gradient", "dX",
    ),
    "any rank": (lambda: register(any_rank, "a::b"), "any_rank writes cannot be read", "mutates="),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_registrations_that_do_not_fit(case: str) -> None:
    make, message, hint = REFUSED[case]
    with pytest.raises(tilec.LaunchError, match=message) as e:
        make()
    assert "register(" in line_of(e) and hint in str(e.value.hint)


def test_writes_nobody_has_named_are_found_at_the_first_call() -> None:
    operator = register(any_rank, "tilec_tests::any_rank", mutates=["X"])
    x, y = torch.ones(3), torch.zeros(3)
    with pytest.raises(tilec.LaunchError, match="writes Y, which mutates does not name"):
        operator(x, y)
    assert not y.any(), "nothing has run"
    operator = register(any_rank, "tilec_tests::any_rank", mutates=["Y"])
    operator(x, y)
    assert y[0] == 1


@tilec.kernel
def clearing(
    Y: T.Tensor((N,), "float32"), X: T.Tensor((N,), "float32") = None, clear: T.constexpr = False
):
    with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
        for i in T.Parallel(32):
            Y[b * 32 + i] = 2
            if X is not None and clear:
                X[b * 32 + i] = 0


def test_writes_of_another_variant_are_found() -> None:
    """What a call decides at compile time decides what is written."""
    operator = register(clearing, "tilec_tests::clearing")
    x, y = torch.ones(3), torch.zeros(3)
    for _ in range(2):
        operator(y)
        operator(y, x)
        with pytest.raises(tilec.LaunchError, match="writes X, which mutates does not name") as e:
            operator(y, x, True)
        assert "mutates=['Y', 'X']" in e.value.hint
    assert x.all() and (y == 2).all()
    operator = register(clearing, "tilec_tests::clearing_2", mutates=["Y", "X"])
    both = torch.compile(lambda x, y: operator(y, x, True), backend="aot_eager", fullgraph=True)
    both(x, y)
    assert not x.any()


def test_without_torch() -> None:
    program = "import sys; sys.modules['torch'] = None; import tilec; tilec.torch"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "tilec.torch makes operators of PyTorch: pip install 'tilec[torch]'" in found.stderr
