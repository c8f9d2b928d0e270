"""Driver of Bayesian Caffe: what comes before and after `caffe train`, as library and command."""

__version__ = "0.1.0"
