"""Nets. Prototxts and caffemodels come in; models, posteriors and smaller nets go out."""
