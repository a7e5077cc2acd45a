"""Whole models: from a file or a program of torch to kernels that run one after the other in one native call.

`model` is what an import gives. `onnx_import` reads ONNX: `onnx_file` the bytes, `onnx_scope` the nodes,
each by a row of `onnx_ops`. `torch_import` reads exported programs of torch: `torch_scope` the nodes, each by
a row of `torch_ops`. What a row computes is stated in `lowering`, which knows no file format. `fallback` runs
what is no expression. `torch_backend` is what torch.compile calls.
`tasks` and `tuning` tune what a model runs, `compiling` makes a `module` of it, and `program` runs that, in
the memory of the host (`host_memory`) or of a device (`device_memory`).
"""
