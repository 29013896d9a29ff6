"""From a decorated function to launches: what `tilec.kernel` is made of.

specialise         the facts that a call's arguments give
choose             the compile-time arguments and the plan that a call leaves open
fingerprint, disk  the cache on disk and its keys
build              tracing, passes, code generation, assembly
attempts           machine code for one plan after another
compiled, export   what they make
stages             the stages as text and files
launch_grid        the grid as a function
fastpath, recipe   launches that were made before
"""
