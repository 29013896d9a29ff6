"""What passes are made of, and no pass itself.

What is asked of a program:

accesses, memory_access   element accesses, and where in memory they are
regions                   loops over elements that move a box
tile_ends                 where tiles end, which may have more, and how much
slicing                   what copies and their addresses are computed from
operands, gemm_layouts    a product's operands, and the layouts that it asks for
registers, consumer_groups  what a thread may hold; loops over blocks that warpgroups share

What code is made with:

addressing                places of elements, guards
building                  whole buffers, counted loops, buffers of another type
distribution              layouts that spread a tile over threads
conversions               fragments from layout to layout
loop_body                 one iteration of a loop over elements, in registers
raster_groups             in which order blocks take the tiles of a grid
rings, multicast          stages of a tile ahead of its use, filled for a cluster
realign                   tiles of rows that begin anywhere
groups                    groups of threads, and where each meets
identities, dce
"""
