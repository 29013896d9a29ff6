"""The differential fuzzer: random tile programs, whose results on every target are compared with
what their source means in NumPy.

Writing programs, as the source of a `@tilec.kernel`:

    generate      a program from a seed and a number
    words         the table of the functions that write, one a word; words that need none
    copies, elements, reductions, control, pipelines, products, threads, annotations
                  these functions, by subject
    expressions, functions
                  numbers: of what the program has, and functions of them
    launches      the grid in all its spellings
    assemble      the parts put together; what the call makes itself
    outputs       copies of tiles to where they are seen
    writer        the state of a program that is being written
    program       a program: source, arguments, launch
    arrays        the arguments it is called with, of many strides

What they mean:

    syntax        the kernel's source, changed into what Python can run
    prepared      runs it on the words of
    meaning, maths
                  the language in NumPy
    numbers       NumPy arrays of a dtype, with bounds of their errors
    buffers       tensors and tiles; what several iterations or blocks may not both touch

What becomes of them:

    outcome       runs a program on the CPU target, the simulator and a GPU, and compares
    gpu, silence  by way of torch; without what it prints
    session       programs one after the other
    workers       processes that run them, and may be lost
    shrink        makes a failing program smaller
    testfile      writes it as a test
    cli           `python -m tilec fuzz`
"""
