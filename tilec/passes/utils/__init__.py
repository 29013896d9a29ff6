"""What passes are made of, and no pass itself.

What is asked of a program:

accesses, memory_access   element accesses, and where in memory they are
regions                   loops over elements that move a box
slicing                   what copies and their addresses are computed from
held_once, held_operands  registers that nobody else has a part of
coalescing, vectors       how many neighbours one access takes
operands, gemm_layouts    a product's operands, and the layouts that it asks for
registers, teams          what a thread may hold; loops over blocks that warpgroups share

What code is made with:

addressing                places of elements, guards
distribution              layouts that spread a tile over threads
conversions               fragments from layout to layout
loop_body                 one iteration of a loop over elements, in registers
rings, multicast          slots of a tile ahead of its use, filled for a cluster
cluster_grid              grids rounded up to whole clusters
realign                   tiles of rows that begin anywhere
lower_exchanges, lower_matrices, shared_rows, identities, dce
"""
