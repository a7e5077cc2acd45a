"""Whole models: from a file or a program of torch to kernels that run one after the other in one native call.

`model` is what an import gives. `onnx_import` reads ONNX: `onnx_file` the bytes, `onnx_scope` the nodes.
`torch_import` reads exported programs of torch: `torch_scope` the nodes. `operators` has a row for each
operator of both, and what it computes. `fallback` runs what is no expression. `torch_backend` is what
torch.compile calls.
`tasks` and `tuning` tune what a model runs, `compiling` makes a `module` of it, and `program` runs that, in
the memory of the host (`host_memory`) or of a device (`device_memory`).
"""
