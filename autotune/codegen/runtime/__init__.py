"""The code that compiled kernels need at run time, as LLVM IR text: their entry, the thread pool, the
launcher."""
