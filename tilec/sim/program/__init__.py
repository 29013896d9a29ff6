"""What runs: records of LLVM as Python functions, and LLVM's arithmetic on values that may be
undefined."""
