"""Functions that are not tilec's words: by the names that CUDA, libdevice, LLVM and TileLang's
programs know them under."""

from typing import Any

__all__ = [
    "asm", "call_extern", "call_intrin", "call_llvm_intrin", "call_llvm_pure_intrin",
    "call_pure_extern", "import_source",
]  # fmt: skip


def import_source(source: Any = None) -> None:
    """Make known the functions of a source text, LLVM IR or PTX, which `call_extern` calls: those
    that take numbers (in LLVM IR also places in memory, `ptr`) and give a number or nothing.

    CUDA C++ is not compiled: of its functions those work that are tilec's own (the decode functions
    of TileLang's examples). Raises CompileError for a source of which that is true of none.
    """


def call_extern(*args: Any, dtype: Any = None, evaluate: Any = None) -> Any:
    """`call_extern(dtype, "name", …)`, or `call_extern("name", …, dtype=…)`: a call of a function.
    `dtype` is that of the result, "handle" or "void" where there is none; places in memory are
    `T.address_of(A[i])` or `T.access_ptr(A[i], "r")`.

    The functions are those of `import_source`, tilec's own (fast_decode_int4, decode_i4u_to_f16 and
    their kin, of packed ints in a thread's memory) and those of numbers by the names of CUDA
    (`expf`, `__expf`, `fminf`, `__ldg`), libdevice (`__nv_expf`), OCML (`__ocml_exp_f32`), TVM
    ("tirx.exp") and LLVM ("llvm.exp2.f32"): each is tilec's word for it. An imported one is taken
    for a function of its arguments alone, unless it gives nothing. `evaluate`: what an imported one
    computes, a function of NumPy arrays, one for each argument: without it the simulator runs LLVM
    IR on this machine, and no PTX. A `ptr` is given a copy of the elements from a place on, as many
    as `T.access_ptr(x[i], "r", 4)` says, else those of an on-chip buffer; what it has written there
    ("w": all of it, "rw") is stored after the call. For `evaluate` that is an array with a row for
    each element, to be changed.

    Raises CompileError for other names, for the wrong number of arguments, and for dtypes that are
    not the function's.
    """


def call_pure_extern(*args: Any, dtype: Any = None, evaluate: Any = None) -> Any:
    """As `call_extern`."""


def call_intrin(*args: Any, dtype: Any = None, evaluate: Any = None) -> Any:
    """As `call_extern`."""


def call_llvm_intrin(*args: Any, dtype: Any = None, evaluate: Any = None) -> Any:
    """As `call_extern`; a first argument that counts the others, as TVM has it, is left out."""


def call_llvm_pure_intrin(*args: Any, dtype: Any = None, evaluate: Any = None) -> Any:
    """As `call_llvm_intrin`."""


def asm(
    template: Any,
    constraints: Any = "",
    *args: Any,
    dtype: Any = None,
    target: Any = "cuda",
    effects: Any = None,
    evaluate: Any = None,
) -> Any:
    """Inline assembly: `y = T.asm("lop3.b32 %0, %1, %2, %3, 0xea;", "=r,r,r,r", a, b, c,
    dtype="uint32")`. PTX for kernels that are compiled for cuda targets, GCN for hip
    (`target="hip"`: in the simulator only, tilec has no assembler for it), x86 for the CPU.

    `constraints` are LLVM's: outputs ("=r"), inputs ("r", or the number of the output in whose
    register it begins), what else is changed ("~{memory}"). PTX has h (16 bits), r (32), l (64), f
    and d, GCN v and s, x86 r, q and x; n is a literal. `args` are numbers, one for each input;
    `dtype` is that of the result, or a tuple for several. `effects`: it does more than compute its
    results, and happens once for each thread that comes here, in order; True where there are none.
    `evaluate`: what it computes, a function of NumPy arrays (one for each argument) that gives one,
    or a tuple: without it the simulator cannot run it.

    Raises CompileError for constraints that name no register, for arguments that do not fit one, in
    `T.Parallel` where it has effects, and for another target than the kernel's.
    """
