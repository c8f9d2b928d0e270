"""Bayesian Caffe's Python package: everything before and after `caffe train`.

Its rooms, in the order of the data's way; a room imports only from those before it:

    common      errors, files, pycaffe
    data        pictures and arrays -> LMDBs and images
    net         prototxt and caffemodel -> Model, posterior
    exporting   Model -> files for stock Caffe and ONNX
    training    solver prototxt -> caffemodel, log, curve
    stats       draws -> intervals, metrics, analysis
    infer       Model and images -> draws, predictions
    reporting   draws and analysis -> figures, page
    serving     Model -> a service with HTTP
    cli         the command `bayescaffe`

Each command is also a function:

    bayescaffe data       data.from_folder("photos", "data/photos", size=64),
                          data.from_arrays(X, y, "data/mine"), data.prepare("mnist", "data/mnist"),
                          data.prepare_idx("idx", "out")
    bayescaffe convert    convert("solver.prototxt", "stock.caffemodel")
    bayescaffe check      check("solver.prototxt")
    bayescaffe train      train("solver.prototxt"), train_seeds("solver.prototxt", range(1, 6))
    bayescaffe sample     sample(Model("net.prototxt", "net.caffemodel"), images, passes=100),
                          sample(Mixture([model, other]), images)
    bayescaffe merge      merge(["first.npz", "second.npz"], "all.npz")
    bayescaffe calibrate  calibrate(model, held_out, out="calibrated.caffemodel"),
                          calibrate_decisions(draws, coverage=0.95, error=0.01)
    bayescaffe analyze    analyze(draws), stopping_rule(draws, error=0.001)
    bayescaffe predict    predict(model, ["digit.png"])
    bayescaffe serve      serve("lenet.caffemodel", port=8080)
    bayescaffe inspect    inspect("net.prototxt", "net.caffemodel")
    bayescaffe pack       pack(model)
    bayescaffe export     export(model, "out", "means", to="onnx")
    bayescaffe report     report("report.html", draws, analysis)

Modules are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayescaffe import data, stats
    from bayescaffe.common.errors import BayesCaffeError
    from bayescaffe.common.limits import limits
    from bayescaffe.data.images import Images, open_images
    from bayescaffe.exporting.export import export
    from bayescaffe.infer.calibration import Calibration, calibrate
    from bayescaffe.infer.prediction import Prediction, Rule, predict
    from bayescaffe.infer.sampling import sample
    from bayescaffe.net.checking import Check, Finding, check
    from bayescaffe.net.converting import Conversion, convert
    from bayescaffe.net.mixture import Mixture
    from bayescaffe.net.model import Model
    from bayescaffe.net.packing import pack
    from bayescaffe.net.posterior import LayerPosterior, inspect
    from bayescaffe.net.reducing import reduce_net
    from bayescaffe.reporting import plots
    from bayescaffe.reporting.page import report
    from bayescaffe.serving.app import serve
    from bayescaffe.stats.analysis import Analysis, analyze
    from bayescaffe.stats.decisions import DecisionRule, calibrate_decisions
    from bayescaffe.stats.draws import Draws, load_draws, save_draws
    from bayescaffe.stats.merging import merge
    from bayescaffe.stats.stopping import StoppingRule, stopping_rule
    from bayescaffe.training.log import read_curve
    from bayescaffe.training.seeds import train_seeds
    from bayescaffe.training.train import train

__version__ = "0.2.0"

_MEMBERS = {
    "common.errors": ["BayesCaffeError"],
    "common.limits": ["limits"],
    "data.images": ["Images", "open_images"],
    "exporting.export": ["export"],
    "infer.calibration": ["Calibration", "calibrate"],
    "infer.prediction": ["Prediction", "Rule", "predict"],
    "infer.sampling": ["sample"],
    "net.checking": ["Check", "Finding", "check"],
    "net.converting": ["Conversion", "convert"],
    "net.mixture": ["Mixture"],
    "net.model": ["Model"],
    "net.packing": ["pack"],
    "net.posterior": ["LayerPosterior", "inspect"],
    "net.reducing": ["reduce_net"],
    "reporting.page": ["report"],
    "serving.app": ["serve"],
    "stats.analysis": ["Analysis", "analyze"],
    "stats.decisions": ["DecisionRule", "calibrate_decisions"],
    "stats.draws": ["Draws", "load_draws", "save_draws"],
    "stats.merging": ["merge"],
    "stats.stopping": ["StoppingRule", "stopping_rule"],
    "training.log": ["read_curve"],
    "training.seeds": ["train_seeds"],
    "training.train": ["train"],
}
_HOMES = {name: module for module, names in _MEMBERS.items() for name in names}
_MODULES = {"data": "data", "plots": "reporting.plots", "stats": "stats"}
# Written out, since type checkers do not compute it.
__all__ = [
    "Analysis",
    "BayesCaffeError",
    "Calibration",
    "Check",
    "Conversion",
    "DecisionRule",
    "Draws",
    "Finding",
    "Images",
    "LayerPosterior",
    "Mixture",
    "Model",
    "Prediction",
    "Rule",
    "StoppingRule",
    "__version__",
    "analyze",
    "calibrate",
    "calibrate_decisions",
    "check",
    "convert",
    "data",
    "export",
    "inspect",
    "limits",
    "load_draws",
    "merge",
    "open_images",
    "pack",
    "plots",
    "predict",
    "read_curve",
    "reduce_net",
    "report",
    "sample",
    "save_draws",
    "serve",
    "stats",
    "stopping_rule",
    "train",
    "train_seeds",
]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
