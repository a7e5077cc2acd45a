"""The limit on chains of additions. `schedules.passes.partial_sums` keeps it, and `schedules.te.rounding`
relies on it."""

# Most terms of a sum that are added in one chain. At worst 2^13 roundings are 2^-11 of the terms' sizes in
# float32.
CHAIN = 1 << 13
