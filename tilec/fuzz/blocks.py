"""Statements of a block: branches and loops around whole tiles, numbers that all threads read, and
code of single threads: their index, arrays of their own, what they exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.fuzz.expressions import converted, element, tile_element, value
from tilec.fuzz.writer import Scope, Writer, statement

LOOPS = ("range", "T.serial", "T.unroll")


@statement(deepest=4)
def conditional(w: Writer) -> None:
    """What only some blocks, or some iterations, do."""
    with w.block(f"if {uniform(w)}:"):
        w.inner()
    if w.chance(0.2):
        with w.block(f"elif {uniform(w)}:"):
            w.inner()
    if w.chance(0.5):
        with w.block("else:"):
            w.inner()


def uniform(w: Writer) -> str:
    """A condition that is the same for all threads of a block."""
    names = ["bx", "by", *w.counters]
    if w.scalars and w.chance(0.3):
        name, _ = w.one_of(w.scalars)
        return f"{name} {w.one_of(('<', '>='))} {w.between(0, 3)}"
    name, other = w.one_of(names), w.one_of(names)
    parts = (
        f"{name} % 2 == {w.below(2)}",
        f"{name} < {w.between(0, 3)}",
        f"{w.below(2)} <= {name} < {w.between(1, 3)}",
        f"{name} == {w.below(2)} or {other} != 1",
        f"not ({name} > 0 and {other} > {w.below(2)})",
        f"({name} if {other} == 0 else 1) > 0",
    )
    return w.one_of(parts[: w.one_of((2, 2, 6))])


@statement(deepest=3)
def serial(w: Writer) -> None:
    name = w.name("t")
    bounds = w.one_of((str(w.between(0, 3)), f"{w.between(0, 1)}, {w.between(1, 3)}", "by + 1"))
    loop = w.one_of(LOOPS if "by" not in bounds else LOOPS[:2])
    with w.counted(f"for {name} in {loop}({bounds}):", name):
        if w.chance(0.15) and loop != "T.unroll":
            with w.block(f"if {name} == {w.below(2)}:"):
                w.emit(w.one_of(("break", "continue")))
            w.inner()


@statement(deepest=3)
def stepping(w: Writer) -> None:
    """A loop with a step, up or down."""
    name = w.name("t")
    bounds = w.one_of(
        (
            f"0, {w.between(1, 5)}, {w.between(2, 3)}",
            f"{w.between(1, 3)}, -1, -{w.between(1, 2)}",
            f"by, {w.between(1, 4)}, 2",
        )
    )
    loop = w.one_of(LOOPS if "by" not in bounds else LOOPS[:2])
    with w.counted(f"for {name} in {loop}({bounds}):", name):
        pass


@statement(deepest=3)
def unrolled_by_python(w: Writer) -> None:
    """A loop over what is listed: its names are known when the kernel is compiled."""
    name = w.name("c")
    items = [w.between(0, 3) for _ in range(w.between(1, 3))]
    if w.chance(0.5):
        line = f"for {name} in {items}:"
    else:
        second = w.name("c")
        line = f"for {name}, {second} in {tuple((i, w.below(4)) for i in items)}:"
    with w.counted(line, name):
        pass


@statement(deepest=3)
def while_loop(w: Writer) -> None:
    name = w.name("x")
    first = w.one_of(("0", "1", "bx"))
    if w.chance(0.5):
        w.emit(f'{name} = T.alloc_var("int32", init={first})')
    else:
        w.emit(f'{name} = T.alloc_var("int32")')
        w.emit(f"{name} = {first}")
    with w.counted(f"while {name} < {w.between(1, 3)}:", name):
        w.emit(f"{name} += 1")


@statement()
def printed(w: Writer) -> None:
    """What is printed is not looked at: that nothing else changes is."""
    tiles = [t for t in w.tiles if t.shape in ((1,), (2,), (1, 1), (1, 2))]
    if tiles and w.chance(0.5):
        w.emit(f"T.print({w.one_of(tiles).name}, msg='tile')")
    elif w.scalars and w.chance(0.5):
        message = w.one_of(("", ", msg='number'"))
        w.emit(f"T.print({w.one_of(w.scalars)[0]}{message})")
    else:
        w.emit('T.print(f"block {bx} of {by}")')


@statement()
def block_scalar(w: Writer) -> None:
    """A number that all threads read, and use from then on."""
    tensor = w.one_of(w.inputs)
    if "float8" in tensor.dtype:
        return
    if w.chance(0.2):
        one, two = w.name("s"), w.name("s")
        w.emit(f"{one}, {two} = {element(w, Scope((('bx', 4),)), tensor)}, bx * 2 + by")
        w.scalars += [(one, tensor.dtype), (two, "int32")]
        return
    name = w.name("s")
    tiles = [t for t in w.tiles if t.space == "shared"]
    if tiles and w.chance(0.4):
        tensor = w.one_of(tiles)
        text = tile_element(w, Scope(), tensor)
    else:
        text = element(w, Scope((("bx", 4), ("by", 4))), tensor)
    w.emit(f"{name} = {text}")
    w.scalars.append((name, tensor.dtype))


# --- threads --------------------------------------------------------------------------------------


def thread_index(w: Writer) -> str:
    """A name for the thread's index."""
    name = w.name("tx")
    if w.chance(0.15):
        w.emit(f"{name}, _, _ = T.get_thread_bindings()")
        return name
    words = (
        "T.get_thread_binding()",
        "T.get_thread_binding(0)",
        f'T.thread_binding(0, {w.threads}, "threadIdx.x")',
        f"T.thread_binding({w.threads}) + T.get_thread_binding(1)",
    )
    w.emit(f"{name} = {w.one_of(words)}")
    return name


def for_threads(w: Writer, thread: str, count: int, dtype: str) -> str:
    """A value of each of the first threads. Another thread's elements of a fragment cannot be had
    where only some threads ask for them."""
    tiles = w.tiles
    w.tiles = [t for t in tiles if t.space == "shared"]
    made = value(w, Scope(((thread, count),)), dtype, 1)
    w.tiles = tiles
    return made


@statement()
def thread_code(w: Writer) -> None:
    """Every thread fills an array of its own, then some write it to this block's part of an
    output."""
    output = w.outputs[0]
    dtype = w.one_of(("float32", "int32", "float16", "int64"))
    length = min(w.bn, w.between(1, 6))
    tx, mine, r = thread_index(w), w.name("own"), w.name("r")
    loop = w.one_of(LOOPS)
    w.emit(f"{mine} = T.alloc_local(({length},), {w.spelled(dtype)})")
    with w.block(f"for {r} in {loop}({length}):"):
        scope = Scope(((tx, w.threads), (r, length)))
        w.emit(f"{mine}[{r}] = {value(w, scope, dtype, 1)}")
    with w.block(f"for {r} in T.serial(1, {length}):"):
        made = w.one_of(("{0}[{1}] += {0}[{1} - 1]", "{0}[{1}] = T.max({0}[{1}], {0}[{1} - 1])"))
        w.emit(made.format(mine, r))
    with w.block(f"for {r} in {loop}({length}):"):
        with w.block(f"if {tx} < {w.bm}:"):
            item = converted(w, f"{mine}[{r}]", output.dtype)
            w.emit(f"{output.own((tx, r))} = {item}")


@statement()
def thread_tile(w: Writer) -> None:
    """Threads fill a shared tile that loops over elements read."""
    length = w.between(1, min(w.threads, 64))
    dtype = w.one_of(("float32", "int32", "float16", "uint8"))
    tile = w.tile((length,), dtype, "shared")
    tx = thread_index(w)
    if length < w.threads and w.chance(0.3):
        w.emit(f"T.clear({tile.name})")
    with w.block(f"if {tx} < {length}:"):
        w.emit(f"{tile.name}[{tx}] = {for_threads(w, tx, length, dtype)}")
    w.tiles.append(tile)


@statement(weight=2, deepest=3)
def thread_exchange(w: Writer) -> None:
    """By turns threads write elements of their own and read those of others, through a shared tile
    or this block's part of an output, in loops of 0, 1 or 2 turns and under conditions that are the
    same for all."""
    n, dtype = w.threads, w.one_of(("float32", "int32", "float16", "uint8", "int64"))
    flat = w.chance(0.6)
    tile = w.tile((n,) if flat else (4, n // 4), dtype, "shared")
    output = w.outputs[0]
    tx, v = thread_index(w), w.name("v")
    others = (f"{n - 1} - {tx}", f"({tx} + {w.between(1, n)}) % {n}", f"{tx} ^ {w.between(1, 63)}")

    def at(thread: str) -> str:
        return f"{tile.name}[{thread if flat else f'({thread}) % 4, ({thread}) // 4'}]"

    def turn() -> None:
        """Each reads what another one has written, then writes."""
        if w.chance(0.2):
            w.emit("T.sync_threads()")
        kind, other = w.below(4), w.one_of(others)
        if kind == 0:
            w.emit(f"{at(tx)} = {at(other)}")
        elif kind == 1 and w.bm <= n:
            column = str(w.below(w.bn))
            with w.block(f"if {tx} < {w.bm}:"):
                w.emit(f"{output.own((tx, column))} = {converted(w, v, output.dtype)}")
            far = output.own((f"({tx} + 1) % {w.bm}", column))
            w.emit(f"{v} = {converted(w, far, dtype)}")
        elif kind == 2 and w.chance(0.5):  # what is read depends on what was read
            found = at(f"({tx} + T.cast(T.min({v}, 60), 'int32') % 7) % {n}")
            w.emit(f"{v} = T.min({v}, {found})")
        else:
            w.emit(f"{v} = T.min({at(other)}, {v} + {w.one_of(('1', v))})")
            w.emit(f"{at(tx)} = {v}")

    w.emit(f"{at(tx)} = {for_threads(w, tx, n, dtype)}")
    w.emit(f"{v} = {at(w.one_of(others))}")
    for _ in range(w.between(1, 2)):
        kind = w.below(5)
        if kind < 3 and w.depth <= 3:
            with _few_turns(w, kind):
                turn()
        elif kind == 3:
            with w.block(f"if {uniform(w)}:"):
                turn()
        else:
            turn()
    w.emit(f"{at(tx)} = {v}")
    w.tiles.append(tile)


@contextmanager
def _few_turns(w: Writer, kind: int) -> Iterator[None]:
    """A loop of 0, 1 or 2 turns, which the call or the program says."""
    turns = str(w.between(0, 2))
    if w.chance(0.6):
        turns = w.told(int(turns))
    name = w.name("t")
    if kind == 2:
        w.emit(f"{name} = 0")
        with w.block(f"while {name} < {turns}:"):
            yield
            w.emit(f"{name} += 1")
        return
    with w.block(f"for {name} in {w.one_of(LOOPS[:2])}({turns}):"):
        yield
