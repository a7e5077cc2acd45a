"""Lowering passes. Each takes a statement to one with the same meaning. `pipeline` lists them in order;
`lower` runs them for CPUs, `simt` for GPUs."""
