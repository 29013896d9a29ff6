"""Functions that are not tilec's words: by the names that CUDA, libdevice, LLVM and TileLang's
programs know them under."""

from typing import Any

from tilec.builtins.annotations import only_inside


def import_source(source: Any = None) -> None:
    """Make known the functions of a source text, which `call_extern` calls.

    CUDA C++ is not compiled: of its functions those work that are tilec's own (the decode functions
    of TileLang's examples). Raises CompileError for a source of which that is true of none.
    """
    only_inside("import_source")


def call_extern(*args: Any, dtype: Any = None) -> Any:
    """`call_extern(dtype, "name", …)`, or `call_extern("name", …, dtype=…)`: a call of a function.
    `dtype` is that of the result, "handle" or "void" where there is none; places in memory are
    `T.address_of(A[i])` or `T.access_ptr(A[i], "r")`.

    The functions are tilec's own (fast_decode_int4, decode_i4u_to_f16 and their kin, of packed ints
    in a thread's memory) and those of numbers by the names of CUDA (`expf`, `__expf`, `fminf`,
    `__ldg`), libdevice (`__nv_expf`), OCML (`__ocml_exp_f32`), TVM ("tirx.exp") and LLVM
    ("llvm.exp2.f32"): each is tilec's word for it. Raises CompileError for other names, for the
    wrong number of arguments, and for a dtype that is not the function's.
    """
    only_inside("call_extern")


def call_pure_extern(*args: Any, dtype: Any = None) -> Any:
    """As `call_extern`."""
    only_inside("call_pure_extern")


def call_intrin(*args: Any, dtype: Any = None) -> Any:
    """As `call_extern`."""
    only_inside("call_intrin")


def call_llvm_intrin(*args: Any, dtype: Any = None) -> Any:
    """As `call_extern`; a first argument that counts the others, as TVM has it, is left out."""
    only_inside("call_llvm_intrin")


def call_llvm_pure_intrin(*args: Any, dtype: Any = None) -> Any:
    """As `call_llvm_intrin`."""
    only_inside("call_llvm_pure_intrin")
