"""The programs as loops over elements, in the Python that numba and the translator to C take."""
