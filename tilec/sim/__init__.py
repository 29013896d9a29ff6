"""The simulator: runs the LLVM records of a GPU kernel for every thread, on the CPU, and reports
what is wrong with them at the user's own lines.

What is executed is what would be given to LLVM (`ir.llvm`), so a fault of the compiler is found as
well as one of the kernel. Values are NumPy arrays over the threads that go the same way.

- `launch`: which blocks of a launch run, in what order, how long; `report`: what the user gets
- `records`: records as Python functions; `numbers`, `arithmetic`, `intrinsics`: what they compute;
  `undefined`: values that nobody wrote, or that are in flight
- `threads`, `thread_state`, `block`, `scheduler`: threads that go the same way, blocks, clusters
- `barriers`, `waits`, `engines`, `matrices`: what threads wait for, cp.async, TMA, matrix
  instructions
- `tensors`, `regions`, `memory`: what a launch gives, and memory as a block sees it
- `clocks`, `shadow`, `global_shadow`: who touched which memory when, what orders that
- `buffers`, `findings`, `faults`, `counts`, `trace`: buffers as the user knows them, findings and
  what is said of them, counts, traces
"""
