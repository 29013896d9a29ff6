"""The simulator: runs the LLVM records of a GPU kernel for every thread, on the CPU, and reports
what is wrong with them at the user's own lines.

What is executed is what would be given to LLVM (`ir.llvm`), so a fault of the compiler is found as
well as one of the kernel. Values are NumPy arrays over the threads that go the same way.

- `program`: records -> Python functions, one per piece of a basic block that cannot wait
- `values`, `numbers`, `integers`, `fused`: LLVM's arithmetic
- `poison`: what LLVM leaves undefined
- `undefined`, `registers`, `in_flight`: values that nobody wrote, or that are not there yet
- `agent`, `primitives`: threads that go together, and what they can do
- `scheduler`: who runs next, where threads part and meet
- `memory`, `global_memory`, `storage`, `elements`, `places`, `tensors`: bytes, and what they are to
  the user
- `shadow`, `global_shadow`, `order`, `published`: who touched them when; what orders that
- `updates`: which stores put back what they have read
- `barriers`, `mbarriers`, `meeting`: everything that threads wait at
- `engines`, `tma`, `warpgroups`, `matrices`, `lanes`, `intrinsics`: what instructions do
- `block`, `machine`, `launch`: a block, all blocks of a run, a launch with its report
- `counts`: bank conflicts, sectors, bytes and operations of each source line
- `findings`, `advice`, `report`: what is wrong, and what to do about it
- `trace`, `traced_memory`, `printing`, `progress`: what else the user is told
"""
