"""The simulator: runs the LLVM records of a GPU kernel for every thread, on the CPU, and reports
what is wrong with them at the user's own lines.

What is executed is what would be given to LLVM (`ir.llvm`), so a fault of the compiler is found as
well as one of the kernel. Values are NumPy arrays over the threads that go the same way.

- `program`: records -> Python functions, one per piece of a basic block that cannot wait
- `numbers`, `undefined`: LLVM's arithmetic; a value that nobody wrote
- `agent`, `scheduler`, `waiting`: threads that go together, who runs next, what they wait for
- `memory`, `shadow`, `order`: bytes; who touched them when; what is ordered behind what
- `engines`, `barriers`, `intrinsics`: the asynchronous parts of the machine, and LLVM's own names
- `counts`: bank conflicts, sectors, bytes and operations of each source line
- `findings`, `report`, `trace`: what the user is told
"""
