"""The state of one trace: where ops go, which names are in force, which line is being read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilec import language as T
from tilec.frontend.guards import Condition, Quotient
from tilec.frontend.index import Indices, Reach
from tilec.frontend.recovery import LeftOut
from tilec.frontend.source import Source
from tilec.frontend.values import Buffer, Closure, Reducer, Scalar
from tilec.ir.affine import LINEAR
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Value
from tilec.ir.errors import CompileError
from tilec.ir.loc import Loc
from tilec.ir.options import PLAIN
from tilec.ir.types import INT32, INT64, DType


@dataclass(slots=True)
class LoopFlags:
    """The hidden names of a loop being traced: `run` is whether the rest of this iteration still
    runs, `live` whether further iterations do. `breaks`: a `break` was met."""

    run: str
    live: str
    builtin: str
    breaks: bool = False


@dataclass(slots=True)
class Frame:
    """One function being traced: the kernel, or a macro that was called from `caller`.

    `names` are its local names; the dict is replaced, never shared, where control flow parts.
    `loops` are the loops around the code being read, innermost last. `references` are parameters
    that stand for an element or a variable of the caller's. `returned`: how many values its
    `return` gives (-1: one, no tuple), None before the first. `closure`: where it stands inside of
    another function, what it is called as.
    """

    source: Source
    names: dict[str, object] = field(default_factory=dict)
    caller: Loc | None = None
    loops: list[LoopFlags] = field(default_factory=list)
    references: frozenset[str] = frozenset()
    returned: int | None = None
    closure: Closure | None = None

    def loc(self, node: ast.AST) -> Loc:
        return self.source.loc(node, self.caller)


@dataclass(slots=True)
class ParallelScope:
    """A `T.Parallel` being traced, and the variables that each of its iterations has for itself.
    `before`, `behind`: what is done for its iterations together, around the loop; `closing`: what
    emits, in front of the loop, what is known when its body is traced. `drawing`: how its
    iterations draw random numbers from a generator of threads. `updates`: the statements that
    change an element by what it was, by where they stand; `combined`: the fragments that take what
    all iterations give, and how; `named`: the indices that tell their elements apart."""

    line: int
    variables: list[Buffer] = field(default_factory=list)
    extents: tuple[int, ...] = ()
    indices: list[Scalar] = field(default_factory=list)
    before: Builder = field(default_factory=Builder)
    behind: list[Op] = field(default_factory=list)
    closing: list[Callable[[], None]] = field(default_factory=list)
    drawing: Any = None
    updates: dict[Loc, ast.stmt] = field(default_factory=dict)
    combined: dict[Value, str] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)


class Stream(NamedTuple):
    """The random words of a generator: unsigned numbers of 64 bits."""

    seed: Scalar
    seq: Scalar
    off: Scalar


@dataclass(slots=True, eq=False)
class Generator:
    """What T.rng_init on `line` made: of each thread, or of each iteration of `parallel`. `drawn`:
    the variable that counts words; `spare`: by dtype, whether the second of a pair of normal
    numbers is left, and that one. `depth`: the conditions around it; `uneven`: the line that draws
    under one more."""

    line: int
    stream: Stream
    drawn: Buffer
    spare: Mapping[DType, tuple[Buffer, Buffer]]
    depth: int
    parallel: ParallelScope | None
    uneven: int = 0


class BlockBuilder(Builder):
    """A block being made, what names mean at its end, the constants it holds already, the generator
    of random numbers that it has made last, and the buffers of which it reads elements that are
    named in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, object] = {}
        self.constants: dict[tuple[str, str], Scalar] = {}
        self.generator: Generator | None = None
        self.late: set[Value] = set()


class _At:
    """See `Context.at`; a generator would take three times as long, and each expression has one."""

    __slots__ = ("_context", "_loc")

    def __init__(self, context: Context, loc: Loc) -> None:
        self._context, self._loc = context, loc

    def __enter__(self) -> None:
        self._context.loc, self._loc = self._loc, self._context.loc

    def __exit__(self, *error: object) -> None:
        self._context.loc = self._loc


class Context:
    """What every part of the tracer needs; the parts are its subclasses, one per file.

    `indices`: the sums that integers are, and how far they reach. `warp_size`: lanes of a warp.
    `block_shape`: threads along each dimension of a block; `thread_dims`: of which dimension an
    index is. `reducer` is that of the `T.attr` around the code. `depth` counts the run-time
    conditions around the code being read. `hazards` counts the ops emitted so far that had better
    not run unasked: integer divisions, on-chip reads that may be out of bounds. `parallel` is the
    `T.Parallel` around the code, if there is one. `sizes` gives each size its value in this
    variant, `magnitudes` about how large some are, and what divides them. `may_be_empty`: an
    argument is known to have no elements, or tilec makes the grid, which may well have no blocks.
    `threads` of a block, where they are known, `cluster`: blocks along each dimension. `tests`
    says of bools what comparison they are the result of, `guards` which conditions stand around the
    code (None: unknown). `quotients`: what T.ceildiv gave, `block_quotients` the indices of so many
    blocks. `padded` tensors have a safe value of the user's. `segment`: which launch of a T.Kernel
    with T.sync_grid this is. `codes` are the bits of numbers of four (`narrow`), `placements` say
    where the elements of tensors are that are not where their indices say. `given_layouts`: the
    layout that the user gave a buffer, and the line that says so. `made` are the lists and dicts
    made here, by id, with the block that made them: code that runs as often as they are made may
    change them. `attributes` of the function are what the user said of it. `carried` are the values
    that an iteration of a loop has from the one before. `foreign`: the functions of CUDA C++ that
    the user has imported, and where; `imported`: those of LLVM IR and PTX, and the texts they stand
    in. `asserts`: what becomes of T.device_assert, as `Specialisation` says. `left_out`: what
    earlier traces have found. `unrolls`: the loops around the code that could be written out.
    `asynchronous`: an async_scope stands around it. `read_early`: buffers whose elements are read
    where they are named, as a loop behind that place reads and writes them. `narrow_tiles`: shared
    tiles of elements that are narrower in memory, with what asks for them; `whole_writes`: the ops
    that write these by whole bytes of tensors, or fill them. `shown`: of each view the buffer that
    it shows.
    """

    def __init__(self, frame: Frame, wide: bool = False) -> None:
        self.frames = [frame]
        self.builders = [BlockBuilder()]
        self.index_dtype: DType = INT64 if wide else INT32
        self.warp_size = 32
        self.block_shape: tuple[int, ...] = ()
        self.thread_dims: dict[Value, int] = {}
        self.reducer: Reducer | None = None
        self.asynchronous = False
        self.loc = frame.source.header_loc()
        self.indices = Indices()
        self.depth = 0
        self.hazards = 0
        self.own_loops: set[Value] = set()  # the indices of loops over Python's range
        self.parallel: ParallelScope | None = None
        self.reducers: dict[Value, Any] = {}
        self.added_up: set[Value] = set()  # fragments that loops so far have been reduced into
        self.sizes: Mapping[str, int | Scalar] = {}
        self.magnitudes: Mapping[str, tuple[int, int]] = {}
        self.may_be_empty = False
        self.threads: int | None = None
        self.cluster: tuple[int, int, int] | None = None
        self.tests: dict[Value, Condition] = {}
        self.guards: list[Condition | None] = []
        self.quotients: dict[Value, Quotient] = {}
        self.block_quotients: dict[Value, Quotient] = {}
        self.whole_indices: tuple[str, ...] = ()  # of a loop over whole tensors,
        self.whole_extents: tuple[ast.expr, ...] = ()  # how far they count,
        self.whole_names: set[str] = set()  # and all that it names itself
        self.whole_dtypes: dict[DType, ast.expr] = {}
        self.padded: set[Value] = set()
        self.placements: dict[Value, Any] = {}
        self.codes: dict[Value, Any] = {}
        self.segment: int | None = None
        self.given_layouts: dict[Value, tuple[object, int]] = {}
        self.made: dict[int, tuple[object, Builder]] = {}
        self.attributes: dict[str, object] = {}
        self.memories: list[Value] = []  # tensors of all memory, of which T.make_tensor shows parts
        self.at_addresses: set[Value] = set()  # these parts
        self.scalar_names: dict[Value, str] = {}  # of the parameters that are integers
        self.carried: set[Value] = set()
        self.guesses: set[Value] = set()  # of these, whose dtypes are those of literals so far
        self.options = PLAIN
        self.foreign: dict[str, int] = {}
        self.imported: dict[str, str] = {}
        self.asserts: str = ""
        self.left_out = LeftOut()
        self.unrolls: list[ast.For] = []
        self.read_early: set[Value] = set()
        self.narrow_tiles: dict[Value, ast.expr] = {}
        self.whole_writes: set[Op] = set()
        self.shown: dict[Value, Value] = {}

    # --- names and places -------------------------------------------------------------------------

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def names(self) -> dict[str, object]:
        return self.frames[-1].names

    def at(self, place: ast.AST | Loc) -> _At:
        """Ops made inside come from `place`."""
        return _At(self, place if isinstance(place, Loc) else self.frame.loc(place))

    def error(self, message: str, hint: str = "", at: ast.AST | Loc | None = None) -> CompileError:
        """A CompileError at `at` (default: what is being read); to be raised by the caller."""
        place = self.loc if at is None else at if isinstance(at, Loc) else self.frame.loc(at)
        return CompileError(message, place, hint)

    # --- ops --------------------------------------------------------------------------------------

    @property
    def builder(self) -> BlockBuilder:
        return self.builders[-1]

    def emit(self, cls: type[Op], *args: Any, name: str = "", **kwargs: Any) -> Op:
        """Add an op at the current place."""
        return self.builder.emit(cls, *args, name=name, loc=self.loc, **kwargs)

    def emit_scalar(self, cls: type[Op], *args: Any, reach: Reach | None = None) -> Scalar:
        """`emit` of an op whose one result is a number."""
        o = self.emit(cls, *args)
        if o.result.dtype.kind in ("int", "uint") and isinstance(o, LINEAR):
            self.indices.note(o)
        return self.scalar(o.result, reach)

    def scalar(self, value: Value, reach: Reach | None = None) -> Scalar:
        """`value` with what is known of it; a signed integer always has an `Affine`."""
        if value.dtype.kind != "int":
            return Scalar(value)
        if reach is not None:
            self.indices.define(value, reach)
        return Scalar(value, self.indices.form(value))

    @contextmanager
    def inside(
        self, conditional: bool = False, guard: Condition | None = None
    ) -> Iterator[BlockBuilder]:
        """Collect what is emitted into a block of its own. `conditional`: it may not run, but where
        `guard` holds, if that is known.

        Names assigned inside are forgotten afterwards, but by the block."""
        builder = BlockBuilder()
        self.builders.append(builder)
        kept = self.frame.names
        self.frame.names = dict(kept)
        self.depth += conditional
        self.guards += [guard] if conditional else []
        try:
            yield builder
        finally:
            self.depth -= conditional
            if conditional:
                self.guards.pop()
            builder.names, self.frame.names = self.frame.names, kept
            self.builders.pop()

    def visible_names(self) -> set[str]:
        """Everything a name could have meant here, for did-you-mean."""
        return {n for n in self.names if n.isidentifier()} | self.frame.source.visible_names()

    def size(self, size: T.Size) -> int | Scalar:
        """The value of a size that has a plain name."""
        if size.text in self.sizes:
            return self.sizes[size.text]
        hint = f"name it in the shape of a tensor parameter: T.Tensor(({size.text}, …), dtype)"
        raise self.error(f"nothing gives the size {size.text} a value", hint=hint)

    @property
    def known_sizes(self) -> dict[Value, tuple[int, int]]:
        """What `magnitudes` says of sizes, by their values."""
        sizes = [(s, self.magnitudes.get(name)) for name, s in self.sizes.items()]
        return {s.value: n for s, n in sizes if isinstance(s, Scalar) and n is not None}
