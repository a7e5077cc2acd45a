"""Code for CPUs and for GPUs, of lowered functions."""
