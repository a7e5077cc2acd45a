"""Measuring on other machines, on Dask's distributed scheduler (ADR 60).

`worker` offers the slot of a machine, `serving` answers there. `tuning` runs the search here, with a `site`
for each machine. All that passes between them is text (`messages`), and objects that were compiled elsewhere.
"""
