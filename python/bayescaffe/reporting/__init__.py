"""Figures and pages: draws and their analysis come in; figures and one HTML page go out."""
