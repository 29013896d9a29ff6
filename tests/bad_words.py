"""Mistakes with the words of kernels, by kind: a kernel's body, whose line that ends in `#!` the
message must name, a part of the message and a part of the help (@2: the body's second line)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilec

Case = tuple[str, str, str]


@dataclass(frozen=True)
class Kind:
    """`head`: parameters of the kernel; `launch`: those of T.Kernel; `start`: the first lines of
    its body; `warned`: cases that compile, with a CompileWarning."""

    head: str
    start: str
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    cases: dict[str, Case]
    warned: dict[str, Case]
    launch: str = "2, threads=128"
    globals: str = ""

    @property
    def first_line(self) -> int:
        """Where the body of a case begins."""
        return len(self.text("").splitlines())

    def text(self, body: str) -> str:
        lines = [*self.start.strip().split("\n"), *body.split("\n")]
        inner = "".join(f"        {x}\n" for x in lines)
        return (
            f"{self.globals}\n@tilec.kernel\ndef kernel({self.head}, n: T.int32):\n"
            f"    with T.Kernel({self.launch}) as bx:\n{inner}"
        )

    def specs(self) -> list[Any]:
        return [*(tilec.spec(*s) for s in self.shapes), 3]


REDUCTIONS: dict[str, Case] = {
    "too large": ("T.reduce_sum(x, s, dim=3)  #!", "dim of T.reduce_sum is the int 3, but x", "2"),
    "too small": ("T.reduce_max(x, s, dim=-4)  #!", "is the int -4, but x (fragment", "dim=0 to"),
    "of one dimension": ("T.reduce_min(s, s, dim=1)  #!", "has 1 dimension", "write dim=0"),
    "run time": ("T.reduce_sum(x, s, dim=n)  #!", "not an int known at compile time", "dim=0"),
    "two": ("T.reduce_sum(x, s, dim=(1, 2))  #!", "is a tuple of 2, not", "a call for each"),
    "a float": ("T.reduce_sum(x, s, dim=1.0)  #!", "the float 1.0, not an int known", "dim=0"),
    "no dimension": ("T.reduce_sum(x, s, dim=None)  #!", "dim of T.reduce_sum is None", "dim=0"),
    "NumPy's word": ("T.reduce_sum(x, s, axis=1)  #!", "'axis'; did you mean 'dim'?", "dim"),
    "NumPy's shape": ("T.reduce_max(x, s, keepdims=True)  #!", "'keepdims'", "extent of 1 there"),
    "another result": (
        "T.reduce_sum(x, s, dim=1)  #!",
        "along dimension 1 gives a tile of (16, 32) or (16, 1, 32), but out is s (fragment (16,)",
        "allocate out with shape (16, 32)",
    ),
    "a tensor": ("T.reduce_sum(A[0:16, 0:32], s, dim=1)  #!", "A (global (64, 64)", "copy the"),
    "into a tensor": ("T.reduce_sum(S, X[0:16], dim=1)  #!", "out of T.reduce_sum is X", "copy"),
    "of a thread into all": (
        "v = T.alloc_local((4,), 'float32')\nw = T.alloc_fragment((1,), 'float32')\n"
        "T.reduce_sum(v, w, dim=0)  #!",
        "v (local (4,) float32) is each thread's own, and out is w",
        "allocate w with T.alloc_local, too",
    ),
    "bits of floats": ("T.reduce_bitand(S, s, dim=1)  #!", "not those of S (shared", "an int tile"),
    "by half a warp": (
        "if tx < 5:  #!\n    T.reduce_sum(S, s, dim=1)",
        "T.reduce_sum stands under a condition that holds for threads 0 to 4",
        "move T.reduce_sum (line @2) out of it",
    ),
    "running, too large": ("T.cumsum(S, dim=2)  #!", "dim of T.cumsum is the int 2, but S", "1"),
    "running, too small": ("T.cummax(S, dim=-3)  #!", "dim of T.cummax is the int -3", "dim=0"),
    "running, two": ("T.cumsum(S, dim=[0, 1])  #!", "is a list of 2, not an int", "each dimension"),
    "running, elsewhere": ("T.cumsum(S, s, dim=1)  #!", "dst is s (fragment (16,)", "(16, 32)"),
    "a reducer's index": (
        "r = T.alloc_reducer((24,), 'bool')\nT.reducer_init(r)\n"
        "for i, j in T.Parallel(8, 32):\n    T.reducer_update(r[i], S[i, j])  #!",
        "index 0 of r (fragment (24,) bool) in T.reducer_update is neither",
        "run over the 24 elements",
    ),
}

PACKED: dict[str, Case] = {
    "output": ("T.reshape(A, (4096, 1))  #!", "elements of four bits come in pairs", "even"),
    "view of other bits": ("T.view(A, (64, 63))  #!", "has 16128 bits, A 16384", "as many"),
    "view of odd rows": ("T.view(W, (21, 195), 'int4')  #!", "16380 bits, W 16384", "as many"),
    "view, odd": ("T.view(W, (4096, 1), 'uint4')  #!", "(4096, 1) uint4: elements of", "even"),
    "view of run-time rows": ("T.view(W, (2, 4096 // n), 'int4')  #!", "an extent of T.view", ""),
    "the upper half": ("x = T.ldg32(A[0, 1])  #!", "may be the upper half of a byte", "2 * j"),
    "by TMA": (
        "t = T.alloc_shared((64, 64), 'int4')\nb = T.alloc_barrier(1)\n"
        "T.tma_copy(A[0, 0], t, barrier=b)  #!",
        "T.tma_copy moves bytes as they are",
        'T.view(A, shape, "uint8")',
    ),
    "by cp.async": (
        "t = T.alloc_shared((64, 64), 'int4')\nT.async_copy(A[0, 0], t)  #!",
        "is unpacked by registers",
        "write T.copy",
    ),
    "too large": (
        "A[0, 0] = 8  #!",
        "8 does not fit int4 (-8 to 7): it goes to A",
        "another dtype",
    ),
    "negative": ("U[0] = -1  #!", "-1 does not fit uint4 (0 to 15)", "another dtype"),
    "no int": ("U[0] = 0.5  #!", "0.5 is not a uint4", "another dtype"),
    "other bits": ("x = T.reinterpret(A[0, 0], 'int16')  #!", "8 and 16", "as many bits first"),
    "no such dtype": ("t = T.alloc_shared((4,), 'int6')  #!", "did you mean 'int", "known:"),
}

# Signatures, and what is allocated: (parameters, lines before T.Kernel, message, hint).
ODD_TENSORS: dict[str, tuple[str, str, str]] = {
    "a row": ('A: T.Tensor((64, 63), "int4")', "", "the last extent of A is 63"),
    "a vector": ('A: T.Tensor((7,), "float4_e2m1")', "", "the last extent of A is 7"),
    "run-time rows": ('A: T.Tensor((M, 3), "uint4")', "", "the last extent of A is 3"),
    "an output": ('X: T.Tensor((4,), "int8")', "D = T.empty((4, 5), 'int4')", "extent is 5"),
    "memory": ('X: T.Tensor((4,), "int8")', "D = T.alloc_global((9,), 'uint4')", "extent is 9"),
    "a pointer": ("a: T.ptr", "D = T.make_tensor(a, (4, 5), 'int4')", "the last extent of a is 5"),
}

COUNTS: dict[str, Case] = {
    "none": ("z = T.alloc_barrier(0)  #!", "is the int 0", "from 1 to 1048575"),
    "less": ("z = T.alloc_barrier(-1)  #!", "is the int -1", "how many threads arrive"),
    "run time": ("z = T.alloc_barrier(n)  #!", "is a run-time int32", "compile-time int"),
    "too many": ("z = T.alloc_barrier(1 << 20)  #!", "is the int 1048576", "1048575"),
    "an empty list": ("z = T.alloc_barrier([])  #!", "is a list of 0", "a list of such counts"),
    "more than arrive": (
        "z = T.alloc_barrier(257)  #!\nT.barrier_arrive(z)\nT.barrier_wait(z, 0)",
        "a phase of z ends with 257 arrivals, and 256 come in all: line @3",
        "write 256 for it",
    ),
    "more than the group": (
        "z = T.alloc_barrier([64, 256])  #!\nif tx < 128:\n    T.barrier_arrive(z[1])\n"
        "else:\n    T.barrier_wait(z[1], 0)",
        "a phase of z[1] ends with 256 arrivals, and 128 come in all: line @5",
        "write 128 for it",
    ),
    "more than the block": (
        "T.sync_threads(1, 512)  #!",
        "barrier 1 is of 512 threads, and 256 of the block's 256 come to it",
        "write 256",
    ),
    "more than the group meets": (
        "if tx < 128:\n    T.sync_threads(1, 256)  #!",
        "barrier 1 is of 256 threads, and 128 of the block's 256",
        "write 128, or let the others come, too",
    ),
    "two numbers": (
        "if tx < 128:\n    T.sync_threads(2, 128)\nelse:\n    T.sync_threads(2, 256)  #!",
        "barrier 2 is of 256 threads, and 128",
        "write 128",
    ),
    "arrive for more": (
        "if tx < 128:\n    T.named_barrier_arrive(1, 256)  #!\nelse:\n    T.sync_threads(1, 128)",
        "barrier 1 is of 256 threads, and 128",
        "write 128",
    ),
    "half a warp arrives": ("T.named_barrier_arrive(1, 48)  #!", "whole warps of 32", "write 32"),
    "half a warp meets": (
        "T.sync_threads(1, 50)  #!",
        "arrive_count of T.sync_threads is 50",
        "32",
    ),
    "too many bytes": ("T.mbarrier_expect_tx(b, 1 << 20)  #!", "1,048,576 bytes", "one stage"),
    "no bytes": ("T.mbarrier_arrive_expect_tx(b, 0)  #!", "is 0, the least is 1", "tx=1"),
}
MANY: dict[str, Case] = {
    "all arrive for one": (
        "T.barrier_arrive(b)  #!\nT.barrier_wait(b, 0)",
        "256 threads arrive at b, a phase of which ends with 1 arrival",
        "if tx == 0:",
    ),
    "two phases at once": (
        "z = T.alloc_barrier(128)\nT.barrier_arrive(z)  #!\nT.barrier_wait(z, 1)",
        "256 threads arrive at z, a phase of which ends with 128 arrivals",
        "write 256 for its arrive_count",
    ),
    "half go on": (
        "T.sync_threads(1, 128)  #!",
        "256 threads come to barrier 1, which lets 128 go on",
        "write T.sync_threads(1, 256)",
    ),
}

_APART = "a shuffle needs every thread of its scope, but stands under a condition (line @{})"
_WARP = "the same for a whole warp"
DIVERGENCE: dict[str, Case] = {
    "some lanes": ("if tx < 5:\n    y = T.shfl_xor(X[tx], 1)  #!", _APART.format(1), _WARP),
    "one lane": (
        "if T.get_lane_idx() == 0:\n    y = T.warp_reduce_sum(X[0])  #!",
        _APART.format(1),
        _WARP,
    ),
    "every other lane": (
        "if tx % 2 == 0:\n    y = T.shfl_down(tx, 1)  #!",
        _APART.format(1),
        _WARP,
    ),
    "a warp and a half": ("if tx < 48:\n    y = T.shfl_up(tx, 1)  #!", _APART.format(1), _WARP),
    "data": ("if I[tx % 64] > 0:\n    y = T.any_sync(1)  #!", _APART.format(1), _WARP),
    "the others": (
        "if tx == 3:\n    v = 1\nelse:\n    y = T.ballot_sync(1)  #!",
        _APART.format(1),
        _WARP,
    ),
    "while": (
        "w = T.alloc_var('int32', tx)\nwhile w > 0:\n    y = T.shfl_up(w, 1)  #!\n    w = w - 1",
        _APART.format(2),
        "move it out of the loop",
    ),
    "for": ("for i in range(tx):\n    y = T.shfl_xor(i, 1)  #!", _APART.format(1), "the loop"),
    "break": (
        "for i in range(8):\n    if X[tx % 64] > 0.0:\n        break\n    y = T.all_sync(i)  #!",
        _APART.format(1),
        _WARP,
    ),
    "continue": (
        "for i in range(8):\n    if tx < 3:\n        continue\n    y = T.warp_reduce_max(i)  #!",
        _APART.format(2),
        _WARP,
    ),
    "return": ("if tx > 17:\n    return\ny = T.shfl_xor(tx, 1)  #!", _APART.format(1), _WARP),
    "conditional": ("y = T.shfl_xor(X[0], 1) if tx < 5 else 0.0  #!", _APART.format(1), _WARP),
    "and": ("y = (tx < 5) and (T.shfl_xor(tx, 1) > 3)  #!", _APART.format(1), _WARP),
    "a function": (
        "def f(v):\n    return T.shfl_xor(v, 1)  #!\nif tx < 5:\n    y = f(tx)",
        _APART.format(3),
        _WARP,
    ),
    "inside of others": (
        "if tx < 64:\n    if bx == 0:\n        if X[tx] > 1.0:\n"
        "            y = T.match_any_sync(tx)  #!",
        _APART.format(3),
        _WARP,
    ),
    "the warp meets": ("if tx < 5:\n    T.sync_warp()  #!", "T.sync_warp() needs every", _WARP),
    "the block meets": (
        "if tx < 5:  #!\n    T.sync_threads()",
        "T.sync_threads() stands under a condition that holds for threads 0 to 4",
        "move T.sync_threads() (line @2) out of it",
    ),
    "the block, by data": (
        "if I[tx % 64] > 0:\n    T.sync_threads()  #!",
        "T.sync_threads() needs every thread of its scope",
        "the same for the whole block",
    ),
    "iterations": (
        "for i in T.Parallel(64):\n    X[i] = T.shfl_xor(X[i], 1)  #!",
        "T.shfl_xor cannot stand in T.Parallel (line @1)",
        "in front of the loop",
    ),
}

SOURCES = '''IR = """
define float @twice(float %x) alwaysinline {
  %y = fadd float %x, %x
  ret float %y
}
define i32 @add3(i32 %a, i32 %b, i32 %c) alwaysinline {
  %y = add i32 %a, %b
  %z = add i32 %y, %c
  ret i32 %z
}
define void @keep(ptr %p, float %x) alwaysinline {
  store float %x, ptr %p
  ret void
}
define <2 x float> @pair(<2 x float> %x) alwaysinline {
  ret <2 x float> %x
}
define float @first({ float, i32 } %x) {
  ret float 0.0
}
"""
PTX = ".func (.reg .f32 %r) half_of (.reg .f32 %x) { mul.f32 %r, %x, 0f3F000000; }"
CPP = "__device__ float thrice(float x) { return 3.0f * x; }"'''
_IR = "T.import_source(IR)\n"
EXTERNS: dict[str, Case] = {
    "unknown": (
        "y = T.call_extern('float32', 'expff', X[0])  #!",
        "T.call_extern knows no function 'expff'; did you mean 'expf'?",
        "T.import_source(text)",
    ),
    "too few": (
        "y = T.call_extern('float32', 'fminf', X[0])  #!",
        "fminf takes 2 arguments, 1 was given",
        "write T.call_extern(dtype, 'fminf', a, b)",
    ),
    "too many": (
        "y = T.call_extern('float32', 'expf', X[0], X[1])  #!",
        "expf takes 1 argument, 2 were given",
        "'expf', a)",
    ),
    "argument": ("y = T.call_extern('float32', 'expf', n)  #!", "takes float32, this is", "cast"),
    "result": ("y = T.call_extern('int32', 'expf', X[0])  #!", "expf gives float32", '"float32"'),
    "dtype": ("y = T.call_extern('flot32', 'expf', X[0])  #!", "'float32'?", "known:"),
    "no name": ("y = T.call_extern('float32')  #!", "calls is None, not a name", '"expf", x)'),
    "a tile": ("y = T.call_extern('float32', 'expf', S)  #!", "not a number", "S[i, j]"),
    "LLVM IR, count": (
        _IR + "y = T.call_extern('float32', 'twice', X[0], X[1])  #!",
        "twice takes 1 arguments, 2 were given: float twice(float)",
        "'twice', …)",
    ),
    "LLVM IR, argument": (
        _IR + "y = T.call_extern('float32', 'twice', n)  #!",
        "twice takes float, this is a run-time int32: float twice(float)",
        "T.float32(x)",
    ),
    "LLVM IR, literal": (
        _IR + "y = T.call_extern('int32', 'add3', n, 1.5, 2)  #!",
        "1.5 is not an int32",
        "write an int",
    ),
    "LLVM IR, result": (
        _IR + "y = T.call_extern('float16', 'twice', X[0])  #!",
        "says float16, twice gives float32: float twice(float)",
        'write "float32"',
    ),
    "LLVM IR, nothing": (
        _IR + "y = T.call_extern('float32', 'keep', T.access_ptr(S[0, 0], 'w', 1), X[0])  #!",
        "keep gives nothing: void keep(ptr, float)",
        'write "void"',
    ),
    "LLVM IR, no place": (
        _IR + "T.call_extern('void', 'keep', X[0] + 1.0, X[0])  #!",
        "argument 0 of keep is a run-time float32, no place in a buffer",
        "write A[i]",
    ),
    "LLVM IR, how much": (
        _IR + "T.call_extern('void', 'keep', T.address_of(X[0]), X[0])  #!",
        "argument 0 of keep is a place of … elements",
        "T.access_ptr(x[i]",
    ),
    "LLVM IR, vectors": (
        _IR + "y = T.call_extern('float32', 'pair', X[0])  #!",
        "pair has to do with <2 x float>: <2 x float> pair(<2 x float>)",
        "functions take numbers",
    ),
    "LLVM IR, structs": (
        _IR + "y = T.call_extern('float32', 'first', X[0])  #!",
        "first has to do with { float, i32 }: float first({ float, i32 })",
        "functions take numbers",
    ),
    "PTX, argument": (
        "T.import_source(PTX)\ny = T.call_extern('float32', 'half_of', n)  #!",
        "half_of takes f32, this is a run-time int32: f32 half_of(f32)",
        "T.float32(x)",
    ),
    "PTX, count": (
        "T.import_source(PTX)\ny = T.call_extern('float32', 'half_of')  #!",
        "half_of takes 1 arguments, 0 were given",
        "'half_of', …)",
    ),
    "C++": ("T.import_source(CPP)  #!", "is CUDA C++ (thrice)", "LLVM IR or PTX, or write a"),
    "a decoder's result": (
        "p = T.address_of(X[0])\nT.call_extern('handle', 'decode_i4u_to_f16', p, p, 8)  #!",
        "decode_i4u_to_f16 writes float16, dst is in X (global (64,) float32)",
        "allocate it as float16",
    ),
}

ATOMICS: dict[str, Case] = {
    "float8": ("T.atomic_add(F[0], 1.0)  #!", "there are no atomics on float8_e4m3", "of 16 or"),
    "float8 on chip": ("T.atomic_max(Q[0], 1.0)  #!", "no atomics on float8_e5m2", "8 bits or"),
    "int4": ("T.atomic_add(U[0], 1)  #!", "there are no atomics on int4", "int of 8 bits"),
    "float4": ("T.atomic_add(F4[0], 1.0)  #!", "no atomics on float4_e2m1", "int of 8 bits"),
    "scales": ("T.atomic_max(E[0], 1.0)  #!", "no atomics on float8_e8m0", "float of 16"),
    "exchange": ("x = T.atomic_exchange(F[0], 1.0)  #!", "no atomics on float8_e4m3", "8 bits"),
    "load": ("x = T.atomic_load(F[0])  #!", "src of T.atomic_load is in F", "8 bits"),
    "store": ("T.atomic_store(F4[0], 1.0)  #!", "dst of T.atomic_store is in F4", "8 bits"),
    "pairs": ("T.atomic_addx2(F[0], F[2])  #!", "no atomics on float8_e4m3", "8 bits"),
    "fours": ("T.atomic_addx4(U[0], U[4])  #!", "there are no atomics on int4", "8 bits"),
    "a tile": (
        "t = T.alloc_shared((64,), 'float8_e4m3')\nT.atomic_add(F[0], t)  #!",
        "there are no atomics on float8_e4m3: dst of T.atomic_add is in F",
        "8 bits",
    ),
    "bits of floats": ("T.atomic_or(A[0, 0], 1)  #!", "not those of A (global", "an int tensor"),
    "compared floats": ("x = T.atomic_cas(H[0], 0, 1)  #!", "compares ints, not", "T.reinterpret"),
    "of one thread": ("T.atomic_add(l[0], 1.0)  #!", "no other thread sees", "l with T.alloc_sh"),
    "a fragment": ("T.atomic_add(s[0], 1.0)  #!", "s (fragment (16,) float32), which no", "s with"),
    "a variable": ("T.atomic_add(v, 1)  #!", "the variable v (int32), which no other", "assign to"),
    "an order": (
        "T.atomic_add(A[0, 0], 1.0, memory_order='strong')  #!",
        "memory_order of T.atomic_add is the str 'strong'",
        "one of 'relaxed', 'acquire'",
    ),
    "CUDA's word": ("T.atomicCAS(I[0], 1, 2)  #!", "no attribute 'atomicCAS'", "T.atomic_cas(A[i]"),
    "a difference": (
        "T.atomic_sub(I[0], 1)  #!",
        "no attribute 'atomic_sub'",
        "T.atomic_add(A[i], -x)",
    ),
    "a scope": ("T.atomic_add(I[0], 1, scope='gpu')  #!", "no keyword 'scope'", "the whole device"),
}

_ONE = "if tx == 0:\n    "
BARRIERS: dict[str, Case] = {
    "nobody arrives": (
        "T.barrier_wait(b, 0)  #!",
        "nobody arrives at b, for whose phase this waits",
        "write T.barrier_arrive(b)",
    ),
    "nobody arrives there": (
        _ONE + "T.barrier_arrive(bb[0])\nT.barrier_wait(bb[1], 0)  #!",
        "nobody arrives at bb[1]",
        "write T.barrier_arrive(bb[1])",
    ),
    "only bytes": (
        "T.tma_copy(A[0, 0], S, barrier=b)\nT.barrier_wait(b, 0)  #!",
        "nobody arrives at b",
        "T.tma_copy announces bytes, and arrives nowhere",
    ),
    "bytes twice": (
        "T.mbarrier_expect_tx(b, 8192)  #!\nT.tma_copy(A[0, 0], S, barrier=b)\n"
        + _ONE
        + "T.barrier_arrive(b)\nT.barrier_wait(b, 0)",
        "8,192 bytes are announced on b that no copy brings",
        "leave it out",
    ),
    "bytes twice, and an arrival": (
        _ONE + "T.mbarrier_arrive_expect_tx(b, 8192)  #!\nT.tma_copy(A[0, 0], S, barrier=b)\n"
        "T.barrier_wait(b, 0)",
        "T.tma_copy announces its own, and line @4 would wait for ever",
        "write T.barrier_arrive(b)",
    ),
    "too late": (
        "T.barrier_wait(b, 0)  #!\n" + _ONE + "T.barrier_arrive(b)",
        "this waits for a phase of b that only its own threads end, on line @3 behind it",
        "arrive in front of the wait",
    ),
    "too late in a group": (
        "with T.ws(1):\n    T.barrier_wait(bb[1], 0)  #!\n    T.barrier_arrive(bb[1])",
        "this waits for a phase of bb[1] that only its own threads end",
        "let other threads arrive",
    ),
    "nobody waits": (
        "T.named_barrier_arrive(1, 256)  #!",
        "256 threads arrive at barrier 1, and nobody waits for so many",
        "write T.sync_threads(1, 256)",
    ),
    "no such group": ("with T.ws(2):  #!\n    T.clear(S)", "the block has 256", "threads=384"),
    "in a loop": (
        "for i in range(4):\n    z = T.alloc_barrier(1)  #!",
        "in a loop or",
        "move it up",
    ),
    "under a condition": ("if bx == 0:\n    z = T.alloc_barrier(1)  #!", "under a cond", "move it"),
    "iterations arrive": (
        "for i in T.Parallel(64):\n    T.barrier_arrive(b)  #!",
        "cannot stand in T.Parallel (line @1)",
        "in front of the loop",
    ),
    "no such slot": ("T.barrier_arrive(bb[2])  #!", "index 2 in dimension 0 of bb", "0 to 1"),
    "which": ("T.barrier_arrive(bb)  #!", "is bb (barrier): 2 barriers", "write which: bb[i]"),
    "a tile": (
        "T.barrier_wait(S, 0)  #!",
        "S (shared (64, 64) float16), not a barrier",
        "make one",
    ),
    "as a tile": (
        "T.clear(b)  #!",
        "the destination is b (barrier), not a tile",
        "T.barrier_arrive",
    ),
    "as a number": ("x = b + 1  #!", "this operand is b (barrier), not a number", "T.barrier_wait"),
    "set": ("b[0] = 0  #!", "a barrier of b cannot be assigned to", "arrive at it with"),
    "parity": ("T.barrier_wait(b, 0.5)  #!", "is the float 0.5, not an integer", "lowest bit"),
    "no barrier": ("T.tma_copy(A[0, 0], S)  #!", "needs the barrier", "bar = T.alloc_barrier(1)"),
    "a store's": ("T.tma_copy(S, A[0, 0], barrier=b)  #!", "nothing is counted", "leave barrier"),
    "no cluster": ("T.cluster_wait()  #!", "not launched in clusters", "cluster_dims=2"),
}
CLUSTER: dict[str, Case] = {
    "only waits": ("T.cluster_wait()  #!", "there is no T.cluster_arrive", "T.cluster_sync()"),
    "no such block": ("T.mbarrier_arrive(b, 2)  #!", "cta_id of T.mbarrier_arrive is 2", "rank"),
}

_REALS = (
    'A: T.Tensor((64, 64), "float32"), X: T.Tensor((64,), "float32"), I: T.Tensor((64,), "int32")'
)
_OF_REALS = (((64, 64), "float32"), ((64,), "float32"), ((64,), "int32"))
_TILES = """
x = T.alloc_fragment((16, 4, 32), "float32")
S = T.alloc_shared((16, 32), "float32")
s = T.alloc_fragment((16,), "float32")
tx = T.get_thread_binding()
"""
_NARROW = (
    'A: T.Tensor((64, 64), "int4"), W: T.Tensor((64, 32), "uint8"), U: T.Tensor((64,), "uint4")'
)
_HALVES = 'A: T.Tensor((64, 64), "float16")'
_WITH_BARRIERS = """
tx = T.get_thread_binding()
S = T.alloc_shared((64, 64), "float16")
b = T.alloc_barrier(1)
bb = T.alloc_barrier([1, 128])
"""
_OTHERS = (
    'A: T.Tensor((64, 64), "float32"), F: T.Tensor((64,), "float8_e4m3")'
    ', I: T.Tensor((64,), "int32"), U: T.Tensor((64,), "int4"), H: T.Tensor((64,), "float16")'
    ', E: T.Tensor((64,), "float8_e8m0")'
    ', F4: T.Tensor((64,), "float4_e2m1")'
)
_OF_OTHERS = (
    ((64, 64), "float32"), ((64,), "float8_e4m3"), ((64,), "int32"), ((64,), "int4"),
    ((64,), "float16"), ((64,), "float8_e8m0"), ((64,), "float4_e2m1"),
)  # fmt: skip
_OWN = """
s = T.alloc_fragment((16,), "float32")
l = T.alloc_local((4,), "float32")
v = T.alloc_var("int32", 0)
Q = T.alloc_shared((16,), "float8_e5m2")
"""
_FOUR = (((64, 64), "int4"), ((64, 32), "uint8"), ((64,), "uint4"))
_TWO_GROUPS = "2, threads=256"

KINDS: dict[str, Kind] = {
    "reduction": Kind(_REALS, _TILES, _OF_REALS, REDUCTIONS, {}),
    "packed": Kind(_NARROW, "tx = T.get_thread_binding()", _FOUR, PACKED, {}),
    "counts": Kind(_HALVES, _WITH_BARRIERS, (((64, 64), "float16"),), COUNTS, MANY, _TWO_GROUPS),
    "divergence": Kind(_REALS, _TILES, _OF_REALS, DIVERGENCE, {}),
    "externs": Kind(_REALS, _TILES, _OF_REALS, EXTERNS, {}, globals=SOURCES),
    "atomics": Kind(_OTHERS, _OWN, _OF_OTHERS, ATOMICS, {}),
    "barriers": Kind(_HALVES, _WITH_BARRIERS, (((64, 64), "float16"),), BARRIERS, {}, _TWO_GROUPS),
    "clusters": Kind(
        _HALVES,
        _WITH_BARRIERS,
        (((64, 64), "float16"),),
        CLUSTER,
        {},
        "2, threads=256, cluster_dims=2",
    ),
}
