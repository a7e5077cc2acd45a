"""Whole models: from a graph to kernels that run one after the other in one native call."""
