"""Statistics. Draws come in; credible intervals, metrics and an `Analysis` go out.

Needs NumPy and SciPy only.
"""
