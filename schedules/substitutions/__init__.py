"""Substitutions of small graphs by equal ones: enumerated, verified, written as data, and found in graphs.

`terms` are small graphs over the table of `operators`. `sizes` says for which extents they are defined.
`enumeration` finds terms of equal values, `verify` proves them equal or refuses, `implied` drops what simpler
ones say. `document` reads and writes the file. `matching` finds the places of a graph, and changes one.
"""
