"""Gradients of tensor expressions, as tensor expressions (`te.gradient`).

`reverse` goes from outputs to inputs. For each stage `reductions` and `slopes` tell the derivative of its
value, and `gather` makes the sum over the points that read an element, which `invert` finds. `invariance`
leaves out what is 0. Then the stages are made good to compute: `copies`, `trim`, `phases`, `unroll` and
`pads` each rewrite them to equal ones.
"""

from schedules.te.reverse_mode.reverse import cut, gradient, inputs

__all__ = ["cut", "gradient", "inputs"]
