"""Lowering passes: each takes a statement to a statement with the same meaning. `pipeline` lists them in
order; `lower` runs them for CPUs, `simt` for GPUs."""
