"""The simulator: runs the LLVM records of a GPU kernel for every thread, on the CPU, and reports
what is wrong with them at the user's own lines.

What is executed is what would be given to LLVM (`ir.llvm`), so a fault of the compiler is found as
well as one of the kernel. Values are NumPy arrays over the threads that go the same way.

- `launch`: which blocks of a launch run, in what order, how long; `report`: what the user gets
- `program`: records as Python functions, and LLVM's arithmetic on values that may be undefined
- `machine`: threads that go the same way, blocks, clusters, the scheduler, barriers, memory
- `races`: clocks of threads and engines, the history of memory, accumulators in flight
- `engines`: cp.async, TMA, matrix instructions
- `reports`: buffers as the user knows them, findings and what is said of them, counts, traces
"""
