"""Whole models as one compute DAG, and what is made of it before kernels are: rewrites, groups, an arena.

`graph` is the model: a `ComputeDAG` whose constants have values. Each rewrite is a file with one function
from a graph to a graph of the same meaning. `partition` cuts the rewritten graph into groups, each of which
is one kernel. `plan` gives every tensor between groups a place in one arena.
"""
