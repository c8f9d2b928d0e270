"""Statistics: draws come in; credible intervals, metrics and an `Analysis` go out.

Needs NumPy and SciPy only.
"""
