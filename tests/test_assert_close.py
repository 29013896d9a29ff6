"""`tilec.testing.assert_close`: what it takes for equal, and what it reports."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
from tilec.testing import assert_close, compare


def report(actual: Any, expected: Any, **given: Any) -> str:
    with pytest.raises(AssertionError) as e:
        assert_close(actual, expected, **given)
    return str(e.value)


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [
        (np.float64, 1e-8, 1e-6),
        (np.float32, 1e-6, 1e-5),
        (np.float16, 5e-4, 3e-3),
        (ml_dtypes.bfloat16, 4e-3, 5e-2),
        (ml_dtypes.float8_e4m3fn, 0.06, 0.3),
        (ml_dtypes.float8_e5m2, 0.12, 0.6),
    ],
)
def test_tolerances_follow_the_dtype(dtype: Any, near: float, far: float) -> None:
    """A float64 reference needs no rounding."""
    x = np.full((3, 5), 2.0).astype(dtype)
    assert_close(x, np.full((3, 5), 2.0 * (1 + near)))
    with pytest.raises(AssertionError):
        assert_close(x, np.full((3, 5), 2.0 * (1 + far)))
    assert_close(x, np.full((3, 5), 2.0 * (1 + far)), rtol=2 * far)


def test_integers_are_equal() -> None:
    big = np.array([2**62, 1], np.int64)
    assert_close(big, big.copy())
    text = report(big, big + np.array([1, 0]))
    assert "1 of 2 elements are wrong (50.00%)" in text and "4611686018427387904" in text
    assert_close(np.array([True]), np.array([True]))
    assert_close(np.array([3], np.uint8), np.array([3], np.int64))
    assert_close(np.array([10]), np.array([11]), atol=1)


def test_the_worst_elements() -> None:
    want = np.ones((4, 100))
    got = want.copy()
    got[1, 17], got[3, 42], got[0, 0] = 1.5, -9.0, 1.01
    lines = report(got, want).splitlines()
    assert lines[0] == (
        "the result: 3 of 400 elements are wrong (0.75%); shape (4, 100), float64, "
        "rtol=1e-07, atol=1e-07"
    )
    assert lines[2].strip() == "[3, 42]: got -9, expected 1 (off by 10, 10 of it)"
    assert [line.split(":")[0].strip() for line in lines[3:5]] == ["[1, 17]", "[0, 0]"]


def test_nan_and_infinity_are_told_apart() -> None:
    want = np.array([1.0, np.nan, np.inf, -np.inf, 2.0, np.inf], np.float32)
    assert_close(want, want.copy())
    got = np.array([np.nan, np.nan, np.inf, np.inf, 2.0, 3.0], np.float32)
    text = report(got, want)
    assert "3 of 6" in text and "worst" not in text
    assert "1 are nan and should not be, the first at [0]" in text
    assert "1 should be infinite and are not, the first at [5]" in text
    assert "1 are infinite in another way than they should be, the first at [3]" in text
    assert "1 are nan in another way" in report(got[1:3], want[1:3], equal_nan=False)


def wrong(shape: tuple[int, ...], *where: Any) -> str:
    want = np.zeros(shape)
    got = want.copy()
    for at in where:
        got[at] = 1.0
    return report(got, want).splitlines()[-1].strip()


PATTERNS: dict[str, tuple[tuple[int, ...], tuple[Any, ...], str]] = {
    "all": ((64, 64), (...,), "all elements are wrong"),
    "rows": ((64, 48), (np.s_[3:6], 60), "whole rows are wrong: 3 to 5, 60"),
    "columns": ((64, 48), (np.s_[:, 40:],), "whole columns are wrong: 40 to 47"),
    "every eighth row": ((64, 48), (np.s_[3::8],), "whole rows are wrong: i with i % 8 in {3}"),
    "a tile": (
        (256, 256), (np.s_[64:128, 128:192],),
        "one block is wrong: rows 64 to 127, columns 128 to 191",
    ),
    "a ragged edge": (
        (100, 90), (np.s_[96:, 64:],),
        "one block is wrong: rows 96 to 99, columns 64 to 89 (the last rows and the last columns)",
    ),
    "tiles": (
        (256, 320), (np.s_[0:32, 64:128], np.s_[128:160, 192:256]),
        "whole tiles of 32 x 64 are wrong: (0, 1), (4, 3) of (8, 5)",
    ),
    "ragged tiles": (
        (100, 100), (np.s_[0:64, 64:], np.s_[64:, :64]),
        "whole tiles of 64 x 64 are wrong: (0, 1), (1, 0) of (2, 2)",
    ),
    "lanes": ((64, 64), (np.s_[5::16, ::3],), "only in rows i with i % 16 in {5}"),
    "within": ((64, 64), (np.s_[5, 7], np.s_[9, 30]), "all within rows 5 to 9, columns 7 to 30"),
    "a vector": ((128,), (np.s_[32:64],), "whole elements are wrong: 32 to 63"),
    "one element": ((1, 1), (...,), "all elements are wrong"),
    "a matrix of a batch": ((3, 4, 8, 8), (np.s_[1, 2],), "only in the matrices (1, 2) of 12"),
}  # fmt: skip


@pytest.mark.parametrize("case", PATTERNS)
def test_patterns(case: str) -> None:
    shape, where, text = PATTERNS[case]
    found = wrong(shape, *where)
    assert found == text or case == "a matrix of a batch"
    if case == "a matrix of a batch":
        want = np.zeros(shape)
        got = want.copy()
        got[where[0]] = 1
        assert text in report(got, want)


def test_some_right_by_chance_do_not_hide_a_tile(rng: np.random.Generator) -> None:
    want = np.zeros((256, 256))
    got = want.copy()
    got[64:128, 0:64] = rng.random((64, 64)) > 0.03
    got[192:, 128:192] = rng.random((64, 64)) > 0.03
    assert "whole tiles of 64 x 64 are wrong: (1, 0), (3, 2)" in report(got, want)


def test_another_mistake_does_not_hide_a_tile() -> None:
    want = np.zeros((250, 300))
    got = want.copy()
    got[64:128, 128:192] = 1
    got[7, 5] = np.nan
    text = report(got, want)
    assert "whole tiles of 64 x 64 are wrong: (1, 2) of (4, 5) (1 more elsewhere)" in text
    got[3] = 1
    assert "tiles" not in report(got, want), "nearly all have to be in them"


def test_scattered_errors_have_no_pattern(rng: np.random.Generator) -> None:
    want = np.zeros((300, 300))
    got = (rng.random((300, 300)) < 0.3).astype(float)
    assert report(got, want).splitlines()[-1].startswith("    [")


def test_several_at_once() -> None:
    a, b = np.zeros(3), np.ones(4)
    assert_close({"a": a, "b": (b, 1.0)}, {"a": a, "b": [b, 1.0]})
    text = report({"a": a, "b": (b, 1.0)}, {"a": a, "b": [b + 1, 2.0]}, msg="layer 3")
    assert text.startswith("layer 3\n") and "result['b'][0]: 4 of 4" in text
    assert "result['b'][1]: 1 of 1" in text
    assert report(a, b) == "the result has the shape (3,), expected (4,)"
    assert report([a], [a, b]) == "the result is 1 values, expected 2"
    assert report({"a": a}, {"b": a}) == "the result holds a, expected b"
    assert_close(np.zeros((0, 4)), np.zeros((0, 4)))


def test_comparisons_can_be_read() -> None:
    found = compare(np.array([1.0, 2.0]), np.array([1.0, 3.0]))
    assert not found.ok and found.count == 1 and found.wrong.tolist() == [False, True]
    assert compare([1.0], [1.0]).ok


def test_tensors_of_torch(torch: Any) -> None:
    x = torch.randn(4, 5)
    assert_close(x.bfloat16().requires_grad_(), x.double())
    assert_close(x.half(), x.numpy())
    assert "20 of 20" in report((x + 3).to(torch.float8_e5m2), x.double())
    assert_close(torch.ones(2, dtype=torch.complex64).conj(), np.ones(2, np.complex128))


@pytest.mark.parametrize(
    ("actual", "given", "message"),
    [
        ("text", {}, "actual is 'text', no array of numbers"),
        (object(), {}, "no array of numbers"),
        ([1.0], {"rtol": -1}, "rtol is -1"),
        ([1.0], {"atol": float("nan")}, "atol is nan"),
        ([1.0], {"atol": "1"}, "atol is '1'"),
    ],
)
def test_mistakes(actual: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(tilec.LaunchError, match=message) as e:
        assert_close(np.asarray(actual) if isinstance(actual, list) else actual, [1.0], **given)
    assert e.value.hint and e.value.loc.file == __file__


@pytest.mark.gpu
def test_tensors_of_a_gpu(torch: Any) -> None:
    x = torch.randn(40, 50, device="cuda")
    assert_close(x.half(), x.double())
    y = x.clone()
    y[:, 7] = float("nan")
    assert "whole columns are wrong: 7" in report(y, x)
