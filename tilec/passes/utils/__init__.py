"""What passes are made of, and no pass itself.

What is asked of a program:

accesses, memory_access   element accesses, and where in memory they are
dependence                who reads what whom has written
regions                   loops over elements that move a box
tile_ends                 where tiles end, which may have more, and how much
thread_masks              which threads come to an op
own_elements              what threads need no order for
rough                     values whose last bits nobody sees
reductions                who combines what
coalescing                how many neighbours a thread holds; the banks of a shared tile
operands, gemm_layouts    a product's operands, and the layouts that it asks for
registers, plans          what a thread may hold; what a plan says, and who said it
orders, role_cut          in which order, or by whom, statements of a loop are best done
sync_state, schedule_program  what threads did since they met; what a schedule comes to

What code is made with:

building, slicing         whole buffers, counted loops; the part that some ops need, copied
addressing                places of elements, guards
distribution              layouts that spread a tile over threads
conversions               fragments from layout to layout
loop_body                 one iteration of a loop over elements, in registers
raster_groups             in which order blocks take the tiles of a grid
rings, multicast          stages of a tile ahead of its use, filled for a cluster
software_pipeline, stages_by_hand  iterations that overlap; a ring whose barriers are the author's
realign, peer_copies      tiles of rows that begin anywhere; parts of shared buffers
groups, consumer_groups   groups of threads, and where each meets; loops that they share
warp_matrices, simt_products, sparse_metadata  what products are made of, instruction by instruction
column_parts, branch_parts, late_scalars  a part of a fragment, of a branch, of what a scope needs
copies_past_registers     cp.async, as loops
identities, if_conversion, dce
"""
