"""How many terms of a sum are added one after another, at most: `schedules.passes.partial_sums` sees to that,
and the bounds of `schedules.te.rounding` count on it."""

CHAIN = 1 << 13  # 2^13 roundings are 2^-11 of the terms' sizes at worst
