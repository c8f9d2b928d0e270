"""Inference. A `Model` and images come in; draws, predictions and decisions go out."""
