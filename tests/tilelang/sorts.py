"""What kind of check each of TileLang's own tests makes, read from its text.

Most of the tests compare numbers, which any implementation of the language can be asked for. Others
ask for something that only TileLang has: its compiler's passes and TVM's objects, a word in the
CUDA source that it writes, its exceptions. `sort_of` tells them apart by what a test and the
functions of its file that it uses say, so that what is counted does not depend on what came out.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Container, Iterator
from pathlib import Path

SORTS = {
    "numbers": "compares numbers, or the values and shapes of what a kernel gives",
    "runs": "compiles or runs kernels and compares nothing",
    "source": "looks for words in the source or the IR, and compares no numbers",
    "raises": "wants an exception of TileLang's",
    "internals": "uses passes of TileLang's compiler, or TVM",
    "outside": "asks for no kernel: about dtypes, expressions, helpers",
    "hardware": "is for another GPU than those of sm_90, or for another vendor's",
}
COUNTED = ("numbers", "runs")
OTHER_HARDWARE = {
    "sm100": r"tcgen05|alloc_tmem|sm_?1[0-2]0|blackwell|blockscaled|utcmma|tmem|T\.clc_",
    "amd": r"mfma|wmma|gfx\d|rocm|cdna|preshuffle|/amd/",
    "metal, webgpu, ascend": r"metal|webgpu|wgsl|ascend",
    "another generation": r"needs compute capability|cutedsl",
}

_INTERNALS = re.compile(
    r"\btvm\b|\btirx?\.|PrimFunc|IRModule|\.script\(|span_|\.attrs\b|\.body\b|buffer_map|_ffi_api"
    r"|\.adapter\b|\btransform\.|IntImm|FloatImm|with_attr|tilelang\.(engine|intrinsics|cuda)"
    r"|IntrinEmitter|monkeypatch|tilelang\.(language\.(eager|common|kernel|ast)|errors|cache|env)\b"
)
_SOURCE = re.compile(
    r"(^|_)(source|src|code|script|text|ptx|sass|cuda|cubin|host|ir|mod|module|artifact|dump|calls?|match(es)?|line)s?($|_)"
)
_COMPARES = re.compile(
    r"assert_close|assert_allclose|assert_array_equal|assert_equal|check_close|assert_tensors|"
    r"compare_tensors|calc_diff|assert_similar|torch_assert"
)
_GIVE_TEXT = ("get_kernel_source", "kernel_source", "get_host_source", "asm")
_RAISES = ("raises", "assertRaises", "warns")


def elsewhere(path: str, name: str, text: str) -> str:
    """The other hardware that a kernel is written for, by its file and its own text; "" if none."""
    for kind, pattern in OTHER_HARDWARE.items():
        if re.search(pattern, f"{path} {name} {text}", re.IGNORECASE):
            return kind
    return ""


def looks_at_text(test: ast.expr, texts: Container[str] = ()) -> bool:
    """Whether an assertion is about a text: the source of a kernel, a message, a word of the IR.
    `texts`: names that hold such."""
    for n in ast.walk(test):
        if isinstance(n, ast.Compare) and any(isinstance(o, ast.In | ast.NotIn) for o in n.ops):
            return True
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            owner = n.func.value
            if isinstance(owner, ast.Name) and owner.id == "re":
                return True
            if n.func.attr in ("count", "find", "index", "startswith", "search", "group"):
                return True
        name = n.id if isinstance(n, ast.Name) else n.attr if isinstance(n, ast.Attribute) else ""
        if name in texts or _SOURCE.search(name.lower()):
            return True
    return False


def texts_in(part: ast.AST, givers: Container[str] = ()) -> frozenset[str]:
    """The names in one function that hold a text or what was found in one: what is made of a
    kernel's source, and what is made of that. `givers`: functions that give such."""
    found: set[str] = set()

    def is_text(value: ast.AST | None) -> bool:
        return any(
            (isinstance(n, ast.Attribute) and n.attr in _GIVE_TEXT)
            or (isinstance(n, ast.Name) and (n.id in found or n.id in givers))
            for n in (ast.walk(value) if value is not None else ())
        )

    count = -1
    while count != len(found):
        count = len(found)
        for n in ast.walk(part):
            if isinstance(n, ast.Assign) and is_text(n.value):
                named = (t for target in n.targets for t in ast.walk(target))
                found |= {t.id for t in named if isinstance(t, ast.Name)}
            elif isinstance(n, ast.For | ast.comprehension) and is_text(n.iter):
                found |= {t.id for t in ast.walk(n.target) if isinstance(t, ast.Name)}
            elif isinstance(n, ast.Return) and is_text(n.value):
                found.add("return")
    return frozenset(found)


def givers_in(tree: ast.Module) -> frozenset[str]:
    """The functions of a file that return the source of a kernel, or what was found in it."""
    found: set[str] = set()
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    count = -1
    while count != len(found):
        count = len(found)
        found |= {f.name for f in functions if "return" in texts_in(f, found)}
    return frozenset(found)


class WithoutTexts(ast.NodeTransformer):
    """Leaves out the assertions that look at texts, and lets what searches them find nothing."""

    def __init__(self, tree: ast.Module) -> None:
        self.givers = givers_in(tree)
        self.texts: frozenset[str] | None = None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if self.texts is not None:  # inside of another
            return self.generic_visit(node)
        self.texts = texts_in(node, self.givers) | self.givers
        made = self.generic_visit(node)
        self.texts = None
        return made

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        left_out = looks_at_text(node.test, self.texts or ())
        return ast.copy_location(ast.Pass(), node) if left_out else node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        texts = (self.texts or frozenset()) - self.givers
        searches = any(isinstance(n, ast.Name) and n.id in texts for n in ast.walk(node.value))
        if not searches or not isinstance(node.targets[0], ast.Name):
            return node
        nothing = ast.Assign(node.targets, ast.Constant(None))
        caught = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [nothing])
        return ast.copy_location(ast.Try([node], [caught], [], []), node)


@functools.lru_cache(maxsize=512)
def functions_of(path: Path) -> tuple[str, dict[str, ast.AST]]:
    """The text of a file, and what it defines at its top, by name."""
    text = path.read_text()
    kinds = (ast.FunctionDef, ast.ClassDef)
    found: dict[str, ast.AST] = {}
    for n in ast.parse(text).body:
        if isinstance(n, kinds):
            found[n.name] = n
        elif isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
            found[n.targets[0].id] = n
    return text, found


def parts_of(path: Path, test: str) -> Iterator[ast.AST]:
    """The definition of a test, and of what it uses of its file, each once."""
    _, found = functions_of(path)
    pending, seen = [test], set()
    while pending:
        name = pending.pop()
        if name in seen or name not in found:
            continue
        seen.add(name)
        yield found[name]
        pending += [n.id for n in ast.walk(found[name]) if isinstance(n, ast.Name)]


def sort_of(path: Path, test: str, short: str) -> str:
    """The sort of a test, of `SORTS`; `test` is its name, with its class's or its parameters' or
    without them; `short` is the file's path in the checkout."""
    name = test.partition("[")[0].rpartition(".")[2]
    text, found = functions_of(path)
    if test.startswith("("):  # of the whole file
        imports = re.findall(r"^(?:from|import) .*(?:\((?:.|\n)*?\))?", text, re.MULTILINE)
        if any(map(_INTERNALS.search, imports)):
            return "internals"
        return "numbers" if "Kernel(" in text else "outside"
    owner = next((o for o, n in found.items() if o != name and _defines(n, name)), name)
    parts = [*parts_of(path, owner)]
    texts = [ast.unparse(p) for p in parts]
    if elsewhere(short, name, "") or any(re.search(r"tcgen05|alloc_tmem|mfma", t) for t in texts):
        return "hardware"
    nodes = [n for p in parts for n in ast.walk(p)]
    named = {n.id for n in nodes if isinstance(n, ast.Name)}
    called = [n.attr for n in nodes if isinstance(n, ast.Attribute)]
    tried = (n for n in nodes if isinstance(n, ast.Try))
    if any(r in called for r in _RAISES) or any(isinstance(n.body[-1], ast.Raise) for n in tried):
        return "raises"
    if any(_INTERNALS.search(t) for t in texts) or named & internals_of(path):
        return "internals"
    if not any(re.search(r"Kernel\(|thread_binding|import_module|\w+\.main\(", t) for t in texts):
        return "outside"
    givers = givers_in(ast.parse(text))
    asserted = [
        looks_at_text(n.test, texts_in(p, givers) | givers)
        for p in parts for n in ast.walk(p) if isinstance(n, ast.Assert)
    ]  # fmt: skip
    if any(_COMPARES.search(n) for n in (*named, *called)) or not all(asserted):
        return "numbers"
    looks = any(re.search(r"get_kernel_source|kernel_source|\blower\b", t) for t in texts)
    return "source" if looks or asserted else "runs"


@functools.lru_cache(maxsize=512)
def internals_of(path: Path) -> frozenset[str]:
    """The names that a file imports from the insides of TileLang's compiler, or of TVM."""
    found = set()
    for n in ast.walk(ast.parse(path.read_text())):
        if isinstance(n, ast.ImportFrom) and n.module and _INTERNALS.search(f"{n.module} "):
            if not n.module.endswith(("sparse_layout", "simplify")):  # programs' own helpers
                found |= {a.asname or a.name for a in n.names}
    return frozenset(found)


def _defines(node: ast.AST, name: str) -> bool:
    inside = ast.walk(node) if isinstance(node, ast.ClassDef) else ()
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in inside)


def cases_of(path: Path) -> int:
    """About how many tests a file has: of parameters given as lists, each value counts."""
    count = 0
    for node in functions_of(path)[1].values():
        for f in ast.walk(node):
            if isinstance(f, ast.FunctionDef) and f.name.startswith("test"):
                cases = 1
                for d in f.decorator_list:
                    values = d.args[1] if isinstance(d, ast.Call) and len(d.args) > 1 else None
                    if isinstance(values, ast.List | ast.Tuple):
                        cases *= len(values.elts)
                    elif values is not None and "parametrize" in ast.unparse(d.func):
                        cases *= 4
                count += cases
    return count
