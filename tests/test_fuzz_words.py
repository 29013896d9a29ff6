"""Every word of the language is written by the fuzzer's generator, with every keyword it has, or is
named in a table that says why not."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import tilec.language as T
from tilec import kernel
from tilec.fuzz import meaning
from tilec.fuzz.buffers import Place
from tilec.fuzz.generate import generate
from tilec.fuzz.program import NAMED_SIZES, PLAIN, Program
from tilec.fuzz.writer import OUTER, STATEMENTS
from tilec.ir.types import ALIASES, DTYPES, DType

WITHOUT_GENERATOR = {
    "Size": "what T.dynamic and T.const make; nobody writes its name",
    "Macro": "what T.macro makes; nobody writes its name",
    "Auto": "the class of T.auto; nobody writes its name",
    "Elementwise": "the class of the words that are functions of numbers",
    "NotYet": "stands for words that are planned and refused",
    "Ref": "marks parameters of macros, which programs do not define",
    "dtype": "a dtype by its name; programs write the dtypes themselves",
    "reduce_prod": "products of random numbers leave every range; tests of their own",
    "thread_return": "ends threads, of which the reference has none; tests of their own",
    "wgmma_gemm": "its author waits for it, by hand, on one target only",
    "gemm_sp": "the reference has no compressed tiles; tests of their own",
    "Fragment": "a layout of registers: it changes no number",
    "sync_grid": "several launches, of which the reference has no order; tests of their own",
    "alloc_global": "the reference has no tensors of the call but T.empty yet",
    "isfinite": "the reference has no meaning of it yet; beside isnan and isinf",
    "reinterpret": "bits of numbers that are rounded are not known to the reference",
    "alloc_reducer": "the reference has no reducers yet; tests of their own",
    "reducer_init": "the reference has no reducers yet; tests of their own",
    "reducer_update": "the reference has no reducers yet; tests of their own",
    "finalize_reducer": "the reference has no reducers yet; tests of their own",
    "atomic_addx2": "two of atomic_add; tests of its own",
    "atomic_addx4": "four of atomic_add; tests of its own",
    "int4": "the reference has no arrays of narrow elements; tests of their own",
    "uint4": "the reference has no arrays of narrow elements; tests of their own",
    "float8_e8m0": "the reference has no arrays of narrow elements; tests of their own",
    "float4_e2m1": "the reference has no arrays of narrow elements; tests of their own",
}
MODULES_WITHOUT_GENERATOR = {
    "barriers": "by hand: a random order of these is a race or a deadlock, not a program",
    "pointers": "by hand: what lies where is the target's, which the reference does not know",
    "lanes": "short vectors and pairs of floats, of which the reference has no numbers yet",
    "votes": "masks of warps, which have 32 or 64 lanes: programs differ by target",
    "allreduce": "what TileLang lowers to; programs that people write have T.reduce",
    "matrices": "one instruction of one vendor, whose operands lie in registers by hand",
    "random": "numbers of threads, which the reference has not; tests of their own",
    "integers": "made of words that programs are written with; tests of their own",
    "externs": "other spellings of words that have one, and ones by hand; tests of their own",
    "moves": "the reference has no meaning of them yet; tests of their own",
    "formulas": "made of words that programs are written with; tests of their own, in ulp",
    "fast": "as exact as the hardware makes them; tests of their own, in ulp",
    "ieee": "the reference rounds to nearest even",
    "views": "the reference has no two buffers in one place yet; tests of their own",
    "statements": "what changes no number, and other spellings; tests of their own",
}
KEYWORDS_WITHOUT_GENERATOR = {
    ("cast", "round"): "the reference rounds to nearest even",
    ("cast", "rbits"): "the reference rounds to nearest even",
    ("cast", "sat"): "the reference rounds to nearest even",
    ("annotate_schedule", "overlap"): "a schedule: it changes no number",
    ("annotate_schedule", "roles"): "a schedule: it changes no number",
    ("copy", "loop_layout"): "a layout of registers: it changes no number",
    ("cumsum", "annotations"): "accepted, and decides nothing",
    ("cummax", "annotations"): "accepted, and decides nothing",
    ("sync_threads", "barrier_id"): "by hand: which threads meet is theirs to say",
    ("sync_threads", "arrive_count"): "by hand: which threads meet is theirs to say",
}
PROGRAMS = 1000
HELPERS = {"tilec.builtins.annotations.dtype_of", "tilec.builtins.annotations.only_inside"}


def language() -> dict[str, Any]:
    """The public words: what `tilec.language` has that is its own, and no tool it is made with."""
    return {name: value for name, value in vars(T).items() if is_word(name, value)}


def is_word(name: str, value: Any) -> bool:
    module = getattr(value, "__module__", "")
    if name.startswith("_") or name.isupper() or f"{module}.{name}" in HELPERS:
        return False
    package, _, topic = module.rpartition(".")
    own = module == "tilec.language" or package == "tilec.builtins"
    return (own and topic not in MODULES_WITHOUT_GENERATOR) or isinstance(value, DType)


@cache
def programs() -> list[Program]:
    return [generate(77, n) for n in range(PROGRAMS)]


@cache
def written() -> tuple[set[str], set[tuple[str, str]]]:
    """What programs write: words, and keywords of words."""
    words: set[str] = set()
    keywords: set[tuple[str, str]] = set()
    texts = [NAMED_SIZES, *(p.source for p in programs())]
    for node in (n for text in texts for n in ast.walk(ast.parse(text))):
        match node:
            case ast.Attribute(value=ast.Name(id="T"), attr=name):
                words.add(name)
            case ast.Constant(value=str(name)) if name in DTYPES or name in ALIASES:
                words.add(DTYPES[ALIASES.get(name, name)].name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keywords |= {(node.func.attr, str(k.arg)) for k in node.keywords}
            keywords |= positional(node.func.attr, len(node.args))
    return words, keywords


def positional(word: str, count: int) -> set[tuple[str, str]]:
    """The parameters that so many arguments of a word name."""
    function = getattr(T, word, None)
    if not is_word(word, function) or not callable(function) or isinstance(function, DType):
        return set()
    return {(word, name) for name in [*parameters(function)][:count]}


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        p.name: p
        for p in inspect.signature(function).parameters.values()
        if p.kind is not p.VAR_POSITIONAL
    }


def missing() -> set[str]:
    """The words that no program writes, under any of their names."""
    words, _ = written()
    done = {id(getattr(T, name)) for name in words if hasattr(T, name)}
    return {name for name, value in language().items() if id(value) not in done}


def test_every_word_is_written_or_named() -> None:
    left = missing() - set(WITHOUT_GENERATOR)
    assert not left, f"write functions for {sorted(left)}, see tilec/fuzz/writer.py"


def test_the_table_names_nothing_else() -> None:
    """A word that has got a generator leaves the table."""
    assert set(WITHOUT_GENERATOR) <= missing(), set(WITHOUT_GENERATOR) - missing()
    assert all(len(why.split()) > 3 for why in WITHOUT_GENERATOR.values())


def test_topics_without_a_generator_are_not_written() -> None:
    """A topic that has got one leaves the table, and each of its words counts."""
    words, _ = written()
    topics = {w: getattr(getattr(T, w, None), "__module__", "").rpartition(".")[2] for w in words}
    assert not {w for w, topic in topics.items() if topic in MODULES_WITHOUT_GENERATOR}
    for topic, why in MODULES_WITHOUT_GENERATOR.items():
        __import__(f"tilec.builtins.{topic}")
        assert len(why.split()) > 3


def test_a_new_word_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def sort(buffer: Any) -> None: ...

    sort.__module__ = "tilec.language"
    monkeypatch.setattr(T, "sort", sort, raising=False)
    assert "sort" in missing()


def test_every_keyword_is_written() -> None:
    """`scope` of the words that make tiles has one value only, `dtype` of a size is ignored."""
    _, keywords = written()
    left = set()
    for name, value in language().items():
        outside = value in (T.dynamic, T.const, T.macro)
        if not inspect.isfunction(value) or name in missing() or outside:
            continue
        left |= {(name, p) for p in parameters(value) if (name, p) not in keywords}
    left = {(word, p) for word, p in left if p != "scope" and not same_word(word, p, keywords)}
    named = set(KEYWORDS_WITHOUT_GENERATOR)
    assert left <= named, sorted(left - named)
    assert named <= left, sorted(named - left)  # what has got a generator leaves the table


def same_word(word: str, parameter: str, keywords: set[tuple[str, str]]) -> bool:
    """Whether another name of the word is written with the parameter."""
    names = [n for n, v in language().items() if v is getattr(T, word)]
    return any((n, parameter) in keywords for n in names)


def test_forms_of_launches_are_written() -> None:
    assert any(len(p.launch.grid) == 1 for p in programs())
    assert any(len(p.launch.grid) == 2 for p in programs())
    assert any(p.launch.keywords.keys() - {"threads"} for p in programs())
    assert any("threads" in p.launch.keywords for p in programs())
    assert any(p.launch == PLAIN for p in programs())
    text = "".join(p.source for p in programs())
    decorators = (f"({name}=" for name in inspect.signature(kernel).parameters if name == "threads")
    for part in (*decorators, "out=[", "    return ", "T.macro", "while ", "elif ", " and ", "not ",
                 " if ", "break", "continue", ") as (bx, bz, by)", "def change"):  # fmt: skip
        assert part in text, part


def test_every_function_is_used() -> None:
    used = {word for p in programs() for word in p.words}
    assert {f.__name__ for f in (*STATEMENTS, *OUTER)} <= used


def test_every_written_word_has_a_meaning() -> None:
    """`prepared` gives the words outside of a body their meaning."""
    words = meaning.Words(Place(), PLAIN)
    outside = {"kernel", "macro", "Tensor", "Buffer", "StridedTensor", "dynamic", "const", "auto"}
    outside |= {"constexpr", "Parallel"}
    for name in written()[0] - outside - set(ALIASES):
        assert getattr(words, name) is not None, name
