"""Outputs that take the memory of inputs: what proves that each element is read before it is overwritten."""
