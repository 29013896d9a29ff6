"""Layouts: algebra by property tests, the hard cases pinned, hardware formulas written
independently."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilec.ir.errors import LayoutError
from tilec.ir.layout import (
    FRAGMENTS,
    Digit,
    Layout,
    blocked,
    padded,
    row_major,
    swizzled,
    wgmma_c,
)

quick = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


# --- random layouts ---


@st.composite
def digit_lists(draw, owners, replicas=True):
    """A shape and digits that reach it: each dimension a product of small radices, dealt out at
    random."""
    rank = draw(st.integers(1, 3))
    shape, parts = [], []
    for i in range(rank):
        step = 1
        for radix in draw(st.lists(st.sampled_from([2, 2, 2, 3, 4, 5, 8]), max_size=3)):
            parts.append((radix, tuple(step if j == i else 0 for j in range(rank))))
            step *= radix
        shape.append(step)
    if replicas:
        zeros = draw(st.lists(st.sampled_from([2, 3, 4]), max_size=2))
        parts += [(radix, (0,) * rank) for radix in zeros]
    order = draw(st.permutations(parts))
    digits = tuple(Digit(draw(st.sampled_from(owners)), r, s) for r, s in order)
    return tuple(shape), digits


@st.composite
def fragments(draw):
    shape, digits = draw(digit_lists(("reg", "lane", "warp")))
    return Layout(shape, digits)


@st.composite
def memories(draw):
    """Digits in any order, perhaps a random invertible XOR of an atom below them, perhaps
    padding."""
    shape, digits = draw(digit_lists(("offset",), replicas=False))
    atom = (1,) * len(shape)
    if draw(st.booleans()):
        widths = [draw(st.integers(0, 3)) for _ in shape]
        atom = tuple(1 << w for w in widths)
        bits = [tuple(1 << k if j == i else 0 for j in range(len(shape)))
                for i, w in enumerate(widths) for k in range(w)]  # fmt: skip
        if bits:
            for _ in range(draw(st.integers(0, 6))):
                a, b = draw(st.integers(0, len(bits) - 1)), draw(st.integers(0, len(bits) - 1))
                if a != b:
                    bits[a] = tuple(x ^ y for x, y in zip(bits[a], bits[b]))
        digits = tuple(
            Digit("offset", d.radix, tuple(s * a for s, a in zip(d.step, atom))) for d in digits
        )
        digits = (*(Digit("offset", 2, b) for b in bits), *digits)
        shape = tuple(e * a for e, a in zip(shape, atom))
    pad = draw(st.sampled_from([None, None, (8, 2), (3, 1), (32, 8)]))
    return Layout(shape, digits, atom, pad)


def indices(layout, *owners):
    return itertools.product(*(range(layout.size(o)) for o in owners))


def by_terms(terms, values):
    total = 0
    for t in terms:
        x = t(values[t.source])
        total = total ^ x if t.xor else total + x
    return total


# --- algebra ---


@quick
@given(fragments())
def test_every_element_is_held_by_as_many_as_the_replicas_say(layout):
    copies = layout.replicas("reg") * layout.replicas("lane") * layout.replicas("warp")
    counts = np.bincount(
        layout.flat("reg", "lane", "warp").ravel(), minlength=np.prod(layout.shape)
    )
    assert set(counts) == {copies}


@quick
@given(fragments())
def test_table_call_and_terms_agree(layout):
    owners = ("reg", "lane", "warp")
    table = layout.table(*owners)
    assert table.shape == (*(layout.size(o) for o in owners), layout.rank)
    for at in itertools.islice(indices(layout, *owners), 0, None, 7):
        values = dict(zip(owners, at))
        want = layout(**values)
        assert tuple(table[at]) == want
        assert tuple(by_terms(layout.forward_terms(d), values) for d in range(layout.rank)) == want


@quick
@given(fragments())
def test_owners_of_is_a_right_inverse(layout):
    reg, lane, warp = layout.owners_of()
    for at in itertools.islice(np.ndindex(*layout.shape), 0, None, 5):
        assert layout(reg=int(reg[at]), lane=int(lane[at]), warp=int(warp[at])) == at


@quick
@given(memories())
def test_offsets_are_the_inverse_of_the_layout(layout):
    offsets = layout.offsets()
    assert len(np.unique(offsets)) == offsets.size and offsets.max() < layout.span()
    for at in itertools.islice(np.ndindex(*layout.shape), 0, None, 3):
        plain = by_terms(layout.inverse_terms(), at)
        assert layout(offset=plain) == at
        assert layout.offset(at) == offsets[at]
        every, skip = layout.pad or (1 << 30, 0)
        assert offsets[at] == plain + plain // every * skip


@quick
@given(memories())
def test_memory_forward_terms(layout):
    for o in range(0, layout.size("offset"), 3):
        got = tuple(by_terms(layout.forward_terms(d), {"offset": o}) for d in range(layout.rank))
        assert got == layout(offset=o)


@quick
@given(st.one_of(fragments(), memories()))
def test_text_round_trip(layout):
    assert Layout.parse(str(layout)) == layout
    assert Layout.parse(layout.exact()) == layout
    assert not set("<>") & set(str(layout))


@quick
@given(fragments(), st.randoms())
def test_equal_places_are_equal_layouts(layout, random):
    """Cut every digit that can be cut: the normal form joins them again."""
    cut = []
    for d in layout.digits:
        radix, step = d.radix, d.step
        for prime in (2, 3, 5):
            while radix % prime == 0 and radix > prime and random.random() < 0.7:
                cut.append(Digit(d.owner, prime, step))
                radix, step = radix // prime, tuple(prime * s for s in step)
        cut.append(Digit(d.owner, radix, step))
    other = Layout(layout.shape, tuple(cut))
    assert other == layout and hash(other) == hash(layout) and str(other) == str(layout)


@quick
@given(fragments(), st.data())
def test_drop_forgets_one_coordinate(layout, data):
    dim = data.draw(st.integers(0, layout.rank - 1))
    left = layout.drop(dim)
    whole, part = (x.table("reg", "lane", "warp") for x in (layout, left))
    assert np.array_equal(np.delete(whole, dim, axis=-1), part)
    assert left.shape == layout.shape[:dim] + layout.shape[dim + 1 :]


@quick
@given(st.one_of(fragments(), memories()), st.data())
def test_permute_turns_coordinates(layout, data):
    order = data.draw(st.permutations(range(layout.rank)))
    turned = layout.permute(order)
    owners = ("offset",) if layout.is_memory else ("reg", "lane", "warp")
    assert np.array_equal(turned.table(*owners), layout.table(*owners)[..., list(order)])
    assert turned.permute([order.index(i) for i in range(layout.rank)]) == layout


@quick
@given(memories(), st.data())
def test_restrict_keeps_offsets(layout, data):
    extents = tuple(
        data.draw(st.sampled_from([d for d in range(1, e + 1) if e % d == 0])) for e in layout.shape
    )
    try:
        part = layout.restrict(extents)
    except LayoutError:
        return
    want = layout.offsets()[tuple(slice(0, e) for e in extents)]
    assert part.shape == extents and np.array_equal(part.offsets(), want)


@quick
@given(fragments(), st.data())
def test_restrict_keeps_owners(layout, data):
    extents = tuple(
        data.draw(st.sampled_from([d for d in range(1, e + 1) if e % d == 0])) for e in layout.shape
    )
    try:
        part = layout.restrict(extents)
    except LayoutError:
        return
    for whole, small in zip(layout.owners_of(), part.owners_of()):
        assert np.array_equal(whole[tuple(slice(0, e) for e in extents)], small)


@quick
@given(st.one_of(fragments(), memories()))
def test_reshape_keeps_row_major_order(layout):
    for shape in ((*layout.shape, 1), (1, *layout.shape), (int(np.prod(layout.shape)),)):
        try:
            other = layout.reshape(shape)
        except LayoutError:
            assert len(shape) == 1 and any(a > 1 for a in layout.atom)
            continue
        owners = ("offset",) if layout.is_memory else ("reg", "lane", "warp")
        assert np.array_equal(other.flat(*owners), layout.flat(*owners))
        assert other.reshape(layout.shape) == layout


@quick
@given(fragments(), st.sampled_from([1, 2, 3]), st.sampled_from([1, 4, 5]))
def test_tile_repeats(layout, first, last):
    times = (first,) + (last,) * (layout.rank - 1)
    big = layout.tile(times, "reg")
    assert big.shape == tuple(e * t for e, t in zip(layout.shape, times))
    regs = layout.size("reg")
    for n, cell in enumerate(np.ndindex(*times)):
        want = layout.table("reg", "lane") + np.multiply(cell, layout.shape)
        assert np.array_equal(big.table("reg", "lane")[n * regs : (n + 1) * regs], want)


@quick
@given(memories())
def test_from_function_finds_the_layout_again(layout):
    """Always if nothing is XORed or all extents are powers of two; else at least never wrongly."""
    offsets = layout.offsets()
    try:
        found = Layout.from_function(layout.shape, lambda *at: offsets[at])
    except LayoutError:
        assert any(a > 1 for a in layout.atom) and any(e & (e - 1) for e in layout.shape)
        return
    assert np.array_equal(found.offsets(), offsets)


# --- what is refused ---


@pytest.mark.parametrize(
    "shape,digits,atom,words",
    [
        ((4,), [("reg", 2, (1,))], (), "reach 2 elements of dimension 0, which has 4"),
        ((4,), [("reg", 2, (2,))], (), "element 1 of dimension 0 is reached not at all"),
        ((4,), [("reg", 4, (1,)), ("lane", 2, (2,))], (), "is reached twice"),
        ((4, 4), [("reg", 4, (1, 1)), ("reg", 4, (0, 1))], (), "diagonally"),
        ((4,), [("thread", 4, (1,))], (), "owned by 'thread'"),
        ((4,), [("reg", 4, (1, 0))], (), "is not a digit"),
        ((6,), [("reg", 6, (1,))], (3,), "power of two"),
        ((4, 4), [("reg", 2, (1, 1)), ("reg", 2, (1, 1))], (2, 2), "do not reach each"),
        ((0,), [], (), "below 1"),
        ((8,), [("offset", 8, (1,))], (), "not a power of two"),
    ],
)
def test_constructor_checks(shape, digits, atom, words):
    align = 24 if words == "not a power of two" else 16
    with pytest.raises(LayoutError, match=words):
        Layout(shape, tuple(Digit(*d) for d in digits), atom, align=align)


def test_a_swizzled_dimension_cannot_be_dropped():
    with pytest.raises(LayoutError):
        swizzled((64, 64), 16, 128).drop(0)


@pytest.mark.parametrize(
    "fn,words",
    [
        (lambda i, j: i, r"\(0, 0\) and \(0, 1\) both at offset 0"),
        (lambda i, j: i * 8 + j + 1, "lowest offset of the layout function is 1"),
        (lambda i, j: i * 8 + (j + i) % 8, "not made of digits, XOR and padding"),
        (lambda i, j: i / 2 + j, "not 0.0"),
        (lambda i, j: i * 8 + j + (i == 1) * 100, "not made of digits"),
    ],
)
def test_functions_that_do_not_fit(fn, words):
    with pytest.raises(LayoutError, match=words):
        Layout.from_function((4, 8), fn)


@pytest.mark.parametrize("text", ["", "64x64", "swizzled(64x64)", "64x64[reg 3:(1,0)]", "foo(3)"])
def test_texts_that_are_no_layouts(text):
    with pytest.raises(ValueError):
        Layout.parse(text)


# --- named layouts ---


@pytest.mark.parametrize("shape", [(1,), (7,), (64, 32), (3, 5, 7), (96, 176)])
def test_row_major_is_row_major(shape):
    layout = row_major(shape)
    assert np.array_equal(layout.offsets(), np.arange(np.prod(shape)).reshape(shape))
    assert str(layout) == f"row_major({'x'.join(map(str, shape))})"
    assert len(layout.inverse_terms()) == sum(e > 1 for e in shape)


def test_padded():
    layout = padded((12, 40), 40, 8)
    assert np.array_equal(layout.offsets(), np.arange(12)[:, None] * 48 + np.arange(40))
    assert layout.span() == 12 * 48 and str(layout) == "padded(12x40, 40, 8)"
    assert padded((8, 8), 8, 0) == row_major((8, 8))


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("rows,boxes", [(8, 1), (64, 2), (96, 3), (176, 1), (4, 2)])
def test_swizzles_are_xors_of_address_bits(bits, swizzle, rows, boxes):
    """CUTLASS Swizzle<1|2|3, 4, 3> on byte addresses, box after box (HOPPER TMA tensor maps)."""
    width = swizzle * 8 // bits
    layout = swizzled((rows, width * boxes), bits, swizzle)
    r, c = np.indices(layout.shape)
    byte = (c // width * rows + r) * swizzle + c % width * bits // 8
    chunk = {32: 1, 64: 3, 128: 7}[swizzle]
    assert np.array_equal(layout.offsets() * bits // 8, byte ^ ((byte >> 7 & chunk) << 4))
    assert layout.align == 8 * swizzle
    assert str(layout) == f"swizzled({rows}x{width * boxes}, {bits}, {swizzle})"


def test_swizzle_counts_rows_over_all_leading_dimensions():
    layout = swizzled((3, 2, 4, 64), 16, 128)
    flat = swizzled((24, 64), 16, 128)
    assert np.array_equal(layout.offsets().reshape(24, 64), flat.offsets())


def test_a_swizzle_has_one_term_more():
    terms = swizzled((128, 64), 16, 128).inverse_terms()
    assert [t.xor for t in terms] == [False, False, True]
    assert [t.xor for t in swizzled((96, 128), 16, 128).inverse_terms()].count(True) == 1


@pytest.mark.parametrize(
    "shape,bits,swizzle", [((64, 40), 16, 128), ((12, 64), 16, 128), ((8, 8), 16, 48)]
)
def test_impossible_swizzles(shape, bits, swizzle):
    with pytest.raises(LayoutError):
        swizzled(shape, bits, swizzle)


@pytest.mark.parametrize(
    "shape", [(1,), (7,), (1, 1), (100,), (64, 64), (96, 176), (5, 128), (2, 3, 4), (128, 1)]
)
@pytest.mark.parametrize("warp_size,warps", [(32, 4), (64, 4), (32, 12), (32, 1)])
@pytest.mark.parametrize("vector", [1, 4, 8])
def test_blocked_fits_every_shape(shape, warp_size, warps, vector):
    layout = blocked(shape, warp_size, warps, vector)
    assert (layout.size("lane"), layout.size("warp")) == (warp_size, warps)
    held = layout.flat("reg", "lane", "warp")
    assert set(held.ravel()) == set(range(int(np.prod(shape))))
    assert layout.replicas("reg") == 1


def test_blocked_is_coalesced():
    layout = blocked((64, 64), 32, 4, 8)
    assert layout(lane=1) == (0, 8) and layout(lane=8) == (1, 0) and layout(warp=1) == (4, 0)
    assert layout(reg=1) == (0, 1) and layout(reg=8) == (16, 0)
    assert str(layout) == "blocked(64x64, 32, 4, 8)"


def test_fragments_print_by_name():
    for name, layout in FRAGMENTS.items():
        assert FRAGMENTS[str(layout)] == layout == Layout.parse(name)


def test_row_of_a_wgmma_result_is_replicated():
    row = wgmma_c(64).drop(1)
    assert row.shape == (64,) and row.replicas("lane") == 4 and row.replicas("reg") == 16
    assert row.drop(0).shape == () and row.drop(0).table("reg", "lane").shape == (32, 32, 0)


def test_functions_of_well_known_layouts():
    assert Layout.from_function((64, 64), lambda i, j: i * 64 + j) == row_major((64, 64))
    assert Layout.from_function((64, 48), lambda i, j: i * 56 + j) == padded((64, 48), 48, 8)
    got = Layout.from_function((64, 64), lambda i, j: i * 64 + (j ^ (i % 8) * 8))
    assert got.digits == swizzled((64, 64), 16, 128).digits
    scalar_only = Layout.from_function((4, 8), lambda i, j: j * 4 + i if j < 8 else 0)
    assert scalar_only == row_major((8, 4)).transpose()
    flat = Layout.from_function((4096,), lambda i: i ^ ((i >> 6 & 7) << 3))
    assert flat.offset((64,)) == 72
