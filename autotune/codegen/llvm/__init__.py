"""Code for CPUs: LLVM IR text from lowered functions, and object code from the text."""
