"""Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), with the counter and the order of words of cuRAND's device functions.

A word is a function of the seed, the sequence and its number, so that all a generator keeps is how
many words are drawn: a variable of each thread, or of each iteration where it is made in
T.Parallel. A generator of threads that is used in T.Parallel draws by iteration (`Shared`): the
words of each are those of the thread that its number gives, not of whoever happens to run it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tilec import language as T
from tilec.builtins.random import PHILOX
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.scalar import block_index, thread_along
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.builtins.threads import same_in_all_threads, sources_of
from tilec.frontend.builtins.tile import new_variable
from tilec.frontend.context import Generator, ParallelScope, Stream
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number, Scalar, describe
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Value
from tilec.ir.ops import Const, Fma, ThreadIndex
from tilec.ir.types import BOOL, FLOAT32, FLOAT64, INT32, UINT64, DType

_OTHERS = ("curandStateMRG32k3a_t", "curandStateXORWOW_t")

# Philox4x32: the multipliers, and what the keys grow by from round to round.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@builtin(T.rng_init)
def rng_init(t: Expressions, c: Call) -> None:
    generator = c["generator"]
    if generator != PHILOX:
        known = ", one of cuRAND's that is not built" if generator in _OTHERS else ""
        hint = f'leave it out, or write generator="{PHILOX}", the one that there is'
        raise c.wrong("generator", f"is {describe(generator)}{known}", hint)
    if c["seq"] is None and t.parallel is not None:
        raise t.error(
            f"T.rng_init in T.Parallel (line {t.parallel.line}) needs a sequence: iterations are "
            "not bound to threads",
            "write T.rng_init(seed, i), or put it in front of the loop",
        )
    seq = _thread_number(t, c) if c["seq"] is None else _word(t, c, "seq")
    seed, off = _word(t, c, "seed"), _word(t, c, "off")
    drawn = new_variable(t, UINT64, 0)
    spare = {
        dtype: (new_variable(t, BOOL, False), new_variable(t, dtype, 0.0))
        for dtype in (FLOAT32, FLOAT64)
    }
    made = Generator(t.loc.line, Stream(seed, seq, off), drawn, spare, t.depth, t.parallel)
    t.builder.generator = made


def _thread_number(t: Expressions, c: Call) -> Scalar:
    if not t.block_shape:
        raise t.error(
            "T.rng_init without seq numbers the threads, and how many a block has is left to tilec",
            "write with T.Kernel(…, threads=128), or give seq",
        )
    blocks = t.binary("mul", block_index(t, 0), t.block_shape[0])
    return t.convert(t.binary("add", blocks, thread_along(t, c, 0)), UINT64)


def _word(t: Expressions, c: Call, name: str) -> Scalar:
    """An int of up to 64 bits, negative ones as their two's complement."""
    given = c.whole(name, f"cast it: {name}=T.int64(x)")
    if isinstance(given, Scalar):
        return t.convert(given, UINT64)
    if not -(1 << 63) <= given < 1 << 64:
        raise c.wrong(name, f"is {given}, which has more than 64 bits", "write a smaller one")
    return t.constant(given % (1 << 64), UINT64)


# --- words ----------------------------------------------------------------------------------------


def _philox(seed: Any, seq: Any, number: Any) -> Any:
    """In the language of kernels: the four words of a counter, `number` in its lower half, `seq` in
    its upper."""
    counter = [T.uint32(number), T.uint32(number >> 32), T.uint32(seq), T.uint32(seq >> 32)]
    key = [T.uint32(seed), T.uint32(seed >> 32)]
    for _ in [*range(_ROUNDS)]:
        first, second = [T.uint64(counter[2 * n]) * _MULTIPLIERS[n] for n in (0, 1)]
        mixed = T.uint32(second >> 32) ^ counter[1] ^ key[0]
        other = T.uint32(first >> 32) ^ counter[3] ^ key[1]
        counter = [mixed, T.uint32(second), other, T.uint32(first)]
        key = [key[n] + _WEYL[n] for n in (0, 1)]
    return counter


def _words_at(seed: Any, seq: Any, off: Any, at: Any, count: Any) -> Any:
    """In the language of kernels: `count` words of a stream, the first `at` words behind `off`."""
    at = off + at
    words = [w for n in ([0] if count == 1 else [0, 1]) for w in _philox(seed, seq, (at >> 2) + n)]
    first = at & 3
    skips, found = [first == n for n in (1, 2, 3)], []
    for n in [*range(count)]:
        word = words[n]
        for skip, other in zip(skips, words[n + 1 :]):
            word = T.if_then_else(skip, other, word)
        found.append(word)
    return found


def _words(t: Expressions, stream: Stream, at: Number, count: int) -> list[Scalar]:
    found: Any = t.trace_function(_words_at, [*stream, at, count], {})
    return [t.run_time(x) for x in found]


def _current(t: Expressions, c: Call) -> Generator:
    """The generator in force here."""
    for builder in reversed(t.builders):
        if builder.generator is not None:
            return builder.generator
    hint = "write T.rng_init(seed) in front of it, in the same block of code or one around it"
    raise t.error(f"T.{c.builtin} draws from no generator", hint)


def _draw(t: Expressions, c: Call, count: int) -> list[Scalar]:
    """The next `count` words."""
    g = _current(t, c)
    if g.parallel is not t.parallel:
        return _shared(t, c, g).draw(t, c, count)
    if t.parallel is None and not g.uneven and not same_in_all_threads(t, t.guards[g.depth :]):
        g.uneven = t.loc.line
    drawn = t.first_element(g.drawn)
    before = t.load(drawn)
    t.store(drawn, t.binary("add", before, count))
    return _words(t, g.stream, before, count)


# --- words of a T.Parallel's iterations -----------------------------------------------------------


@dataclass(eq=False)
class Shared:
    """What the iterations of a T.Parallel draw from a generator of threads. `threads` take turns:
    `turn` is the iteration's number among those of its thread, of which there are `turns`. Each
    takes `taken` words, which is known when the loop ends; until then `stride` stands for it, and
    `base` for how many words were drawn before the loop."""

    generator: Generator
    stream: Stream
    turn: Number
    turns: int
    base: Value
    stride: Op
    taken: int = 0
    paired: bool = False

    def place(self, t: Expressions, turn: Number, word: int) -> Number:
        """Where the words of an iteration begin, and `word` further."""
        stride = Scalar(self.stride.result)
        own = t.binary("mul", t.convert(turn, UINT64), stride)
        return t.binary("add", t.binary("add", Scalar(self.base), own), word)

    def draw(self, t: Expressions, c: Call, count: int) -> list[Scalar]:
        word = self.taken
        self.taken += count
        return _words(t, self.stream, self.place(t, self.turn, word), count)

    def pair(self, t: Expressions, count: int) -> tuple[list[Scalar], Scalar]:
        """The words of a pair of numbers, which two turns have together, and whether this is the
        second of them. `count`: what each of the two takes."""
        word = self.taken
        self.taken += count
        self.paired = True
        first = t.binary("mul", t.binary("floordiv", self.turn, 2), 2)
        words = []
        for turn in (first, t.binary("add", first, 1)):
            words += _words(t, self.stream, self.place(t, turn, word), count)
        return words, t.run_time(t.compare("ne", t.binary("mod", self.turn, 2), 0))

    def close(self, t: Expressions) -> None:
        """In front of the loop: give `base` and `stride` their values, count what it draws."""
        drawn = t.first_element(self.generator.drawn)
        t.load(drawn)
        t.builder.ops[-1] = replace(t.builder.ops[-1], results=(self.base,))
        t.builder.ops.append(replace(self.stride, value=self.taken))  # type: ignore[call-arg]
        turns = self.turns + self.turns % 2 if self.paired else self.turns
        total = t.binary("add", Scalar(self.base), turns * self.taken)
        t.store(drawn, total)


def _shared(t: Expressions, c: Call, g: Generator) -> Shared:
    scope = t.parallel
    assert scope is not None
    inner = [f.builtin for frame in t.frames for f in frame.loops]
    inner = inner[inner.index("Parallel") + 1 :]
    if any(loop != "for" for loop in inner):
        raise t.error(
            f"T.{c.builtin} stands in a loop inside of T.Parallel (line {scope.line})",
            "write T.rng_init(seed, seq) in T.Parallel, which gives each iteration a generator, "
            "or loop over a tuple",
        )
    if scope.drawing is None:
        scope.drawing = _open(t, c, g, scope)
        scope.closing.append(lambda: scope.drawing.close(t))
    found = scope.drawing
    assert isinstance(found, Shared)
    return found


def _open(t: Expressions, c: Call, g: Generator, scope: ParallelScope) -> Shared:
    if g.uneven:
        raise t.error(
            f"T.{c.builtin} in T.Parallel draws by T.rng_init (line {g.line}), from which threads "
            f"may have drawn different numbers of words: line {g.uneven} does under a condition",
            "write T.rng_init again in front of the loop, with another seq or off",
        )
    threads = t.threads
    if threads is None:
        raise t.error(
            f"T.{c.builtin} in T.Parallel draws for the threads in turn, and how many a block has "
            "is left to tilec",
            "write with T.Kernel(…, threads=128)",
        )
    number: Number = 0
    for index, extent in zip(scope.indices, scope.extents):
        number = t.binary("add", t.binary("mul", number, extent), index)
    thread, turn = t.binary("mod", number, threads), t.binary("floordiv", number, threads)
    aside = Builder(t.loc)
    return Shared(
        g,
        _of_thread(t, c, g, thread),
        turn,
        -(-math.prod(scope.extents) // threads),
        aside.const(0, UINT64),
        aside.emit(Const, 0, UINT64),
    )


def _of_thread(t: Expressions, c: Call, g: Generator, thread: Number) -> Stream:
    """The stream that T.rng_init has given `thread`: what its numbers were computed from, again,
    with the number of that thread in the place of this one's."""
    made, by_thread, unknown = sources_of(t, (x.value for x in g.stream))
    if not by_thread and not unknown:
        return g.stream
    if unknown:
        raise t.error(
            f"T.{c.builtin} in T.Parallel draws for the threads in turn, and what T.rng_init (line "
            f"{g.line}) was given is not computed from indices alone",
            "compute seed, seq and off from T.get_thread_binding() and indices of blocks and "
            "loops, or write T.rng_init(seed, seq) in T.Parallel",
        )
    subst: dict[Value, Value] = {}
    for o in made:
        if isinstance(o, ThreadIndex):
            subst[o.result] = t.convert(thread, INT32).value
        elif any(v in subst for v in o.operands):
            t.builder.ops.append(o.clone(subst))
    return Stream(*(Scalar(subst.get(x.value, x.value)) for x in g.stream))


# --- floats ---------------------------------------------------------------------------------------


@builtin(T.rng_rand)
def rng_rand(t: Expressions, c: Call) -> Scalar:
    (word,) = _draw(t, c, 1)
    return word


@builtin(T.rng_rand_float)
def rng_rand_float(t: Expressions, c: Call) -> Scalar:
    bit = static_int(c["bit"])
    if bit not in (32, 64):
        raise c.wrong("bit", f"is {describe(c['bit'])}", "write 32 or 64")
    dtype = FLOAT32 if bit == 32 else FLOAT64
    if c.choice("dist", ("uniform", "normal")) == "normal":
        return _normal(t, c, dtype)
    (word,) = _draw(t, c, 1)
    return _scaled(t, word, dtype, 32, 0.5 if dtype is FLOAT32 else 1.0)


def _scaled(t: Expressions, x: Scalar, dtype: DType, bits: int, more: float) -> Scalar:
    """(x + more) / 2**bits, which is rounded in the conversion of x alone, or not at all."""
    unit = 2.0**-bits
    scaled = t.binary("mul", t.convert(x, dtype), t.constant(unit, dtype))
    return t.run_time(t.binary("add", scaled, t.constant(more * unit, dtype)))


def _box_muller(t: Expressions, words: list[Scalar], dtype: DType) -> list[Scalar]:
    """Two normal numbers: the length from the first half of the words, the angle from the other."""
    if dtype is FLOAT32:
        u = _scaled(t, words[0], dtype, 32, 0.5)
        turn = t.constant(2 * math.pi / 2**32, dtype).value
        half = t.constant(math.pi / 2**32, dtype).value
        angle = t.emit_scalar(Fma, t.convert(words[1], dtype).value, turn, half)
        log, sine, cosine = (
            t.unary(kind, x) for kind, x in (("log", u), ("sin", angle), ("cos", angle))
        )
    else:
        longs = [t.convert(x, UINT64) for x in words]
        halves = (t.binary("xor", longs[n], t.binary("shl", longs[n + 1], 53 - 32)) for n in (0, 2))
        u, v = (_scaled(t, t.run_time(x), dtype, 53, 0.5) for x in halves)
        made = t.trace_function(_log_and_turn, [u, v], {})
        assert isinstance(made, tuple)
        log, sine, cosine = made
    length = t.unary("sqrt", t.run_time(t.binary("mul", log, t.constant(-2.0, dtype))))
    return [t.run_time(t.binary("mul", x, length)) for x in (sine, cosine)]


@T.macro
def _series(x, terms):  # type: ignore[no-untyped-def]
    """In the language of kernels: terms[0] + x * (terms[1] + …)."""
    found = T.float64(terms[-1])
    for term in terms[-2::-1]:
        found = T.fma(found, x, T.float64(term))
    return found


_ATANH = tuple(2.0 / (2 * k + 1) for k in range(13))
_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(10))
_COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(10))


def _log_and_turn(u, v):  # type: ignore[no-untyped-def]
    """In the language of kernels, in float64, which GPUs have no such functions for: log(u), and
    the sine and cosine of 2 pi v, of numbers above 0 and at most 1."""
    bits = T.reinterpret(u, "int64")
    exponent = (bits - T.reinterpret(T.float64(math.sqrt(0.5)), "int64")) >> 52
    m = T.reinterpret(bits - (exponent << 52), "float64")  # from sqrt(0.5) to sqrt(2)
    s = (m - 1.0) / (m + 1.0)
    log = T.fma(T.float64(exponent), T.float64(math.log(2)), s * _series(s * s, _ATANH))
    quarter = T.int32(v * 4.0 + 0.5)
    x = (v - T.float64(quarter) * 0.25) * T.float64(2 * math.pi)
    sine, cosine = x * _series(x * x, _SINE), _series(x * x, _COSINE)
    swapped = quarter % 2 == 1
    first, second = T.if_then_else(swapped, cosine, sine), T.if_then_else(swapped, sine, cosine)
    first = T.if_then_else(quarter % 4 >= 2, -first, first)
    second = T.if_then_else((quarter + 1) % 4 >= 2, -second, second)
    return log, first, second


def _normal(t: Expressions, c: Call, dtype: DType) -> Scalar:
    g = _current(t, c)
    count = dtype.bits // 32  # words that one of a pair takes
    if g.parallel is not t.parallel:
        words, second = _shared(t, c, g).pair(t, count)
        sine, cosine = _box_muller(t, words, dtype)
        return t.select(second, cosine, sine)
    has, spare = (t.first_element(x) for x in g.spare[dtype])
    had = t.load(has)
    kept = t.load(spare)
    found = new_variable(t, dtype, kept)

    def make() -> None:
        sine, cosine = _box_muller(t, _draw(t, c, 2 * count), dtype)
        t.store(t.first_element(found), sine)
        t.store(spare, cosine)

    t.branch(t.run_time(t.logical_not(had)), make)
    t.store(has, t.logical_not(had))
    return t.load(t.first_element(found))
