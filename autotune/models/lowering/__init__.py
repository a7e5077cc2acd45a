"""What the operators of models compute, as tensor expressions, a family a file.

Functions of te tensors that know no file format. An operand may be a numpy array of one element too, which is
written into the expression as a literal. Data that says what is computed, such as axes and pads, are plain
integers. A function states its operator in the form that sketch rules know: rows are reduced as
`schedules/ops/normalize.py` does it, products are sums with their bias in a map afterwards.
"""
