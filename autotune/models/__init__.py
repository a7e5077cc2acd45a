"""Whole models: read from a file into a graph of tensor expressions.

`model` is what an import gives. `onnx_import` reads ONNX: `onnx_file` the bytes, `onnx_scope` the nodes, each
by a row of `onnx_ops`. What a row computes is stated in `lowering`, which knows no file format. `fallback`
runs what is no expression.
"""
