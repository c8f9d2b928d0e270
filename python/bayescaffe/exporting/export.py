"""Trained nets for other programs: `export`.

model = bayescaffe.Model("net.prototxt", "net.caffemodel")
bayescaffe.export(model, "out", "means", to="caffe")
bayescaffe.export(model, "out", range(100), to="onnx")
"""

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.common.progress import ProgressBar
from bayescaffe.exporting.caffe_files import write_caffe
from bayescaffe.net.model import Model, as_model
from bayescaffe.net.stock import StockLayer, stock_layers

FORMATS = ("caffe", "onnx")


def export(
    model: Model | str | os.PathLike,
    out: str | os.PathLike,
    form: str | int | Sequence[int] = "means",
    *,
    to: str,
    weights: str | os.PathLike | None = None,
    class_names: Sequence[str] | None = None,
    progress: bool = True,
) -> list[Path]:
    """Write a net for programs that know no Bayesian layers; return the paths of the files.

    Args:
        model: a loaded `Model`, or a prototxt; a `Model` takes a seed and other options.
        out: the directory to write to; it is created if it does not exist.
        form: "means"; the index of a draw, or several, to write each as a net of its own; or
            "stochastic" (ONNX only), a net that adds noise to its activations at every run.
        to: "caffe" (a prototxt and a caffemodel) or "onnx".
        weights: the caffemodel, if `model` is a prototxt.
        class_names: a name for each class, to be kept in the files; by default those of the
            net's LMDB.
        progress: show a progress bar if this takes long and runs on a terminal or in a notebook.
    """
    _check(form, to)
    model = as_model(model, weights)
    class_names = model.names_for(class_names)
    if form != "means" and not model.is_random:
        raise BayesCaffeError(
            f"{model.path}: no layer is random, so there are no draws to export; export the means"
        )
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    forms = [form] if isinstance(form, (str, int)) else list(form)
    paths = []
    with ProgressBar(len(forms), "exporting", show=progress, unit=" nets", delay=1) as bar:
        for one in forms:
            paths += _write(model, one, to, class_names, out)
            bar.advance(1)
    return paths


def _check(form: str | int | Sequence[int], to: str) -> None:
    if to not in FORMATS:
        raise BayesCaffeError(f"{argument('to', to)} is not one of {', '.join(FORMATS)}")
    if isinstance(form, str):
        if form not in ("means", "stochastic"):
            raise BayesCaffeError(
                f"{argument('form', form)} is not means, stochastic or indices of draws"
            )
        if form == "stochastic" and to != "onnx":
            raise BayesCaffeError(
                f"{argument('form', form)} needs {argument('to', 'onnx')}; stock Caffe has no "
                "layer that gives noise"
            )
    else:
        draws = [form] if isinstance(form, int) else form
        for draw in draws:
            if draw < 0:
                raise BayesCaffeError(
                    f"{argument('form', draw)} is not the index of a draw, 0 or greater"
                )
    if to == "onnx" and importlib.util.find_spec("onnx") is None:
        raise BayesCaffeError(
            f"{argument('to', to)} needs the Python package onnx, which is not installed; "
            "`pip install onnx` installs it"
        )


def _write(
    model: Model, form: str | int, to: str, class_names: Sequence[str] | None, out: Path
) -> list[Path]:
    stem = out / (form if isinstance(form, str) else f"draw-{form}")
    for end in (".prototxt", ".caffemodel"):
        path = stem.with_name(stem.name + end)
        if path.exists() and any(path.samefile(file) for file in (model.path, model.weights)):
            raise BayesCaffeError(f"{path}: would overwrite what is read; choose another directory")
    layers = stock_layers(model, None if isinstance(form, str) else form)
    facts = _facts(model, form, class_names)
    name = model.message.name or model.path.stem
    if to == "caffe":
        return write_caffe(layers, name, facts, stem)
    from bayescaffe.exporting.onnx_file import write_onnx

    if form != "stochastic":
        layers = [StockLayer(layer.param, layer.blobs) for layer in layers]
    shapes = {name: blob.data.shape for name, blob in model.caffe_net.blobs.items()}
    try:
        return [write_onnx(layers, shapes, model.output, name, facts, stem)]
    except BayesCaffeError as error:
        raise BayesCaffeError(f"{model.path}: {error}") from error


def _name(model: Model, draw: int) -> str:
    return f"draw {draw} of seed {model.seed}{', antithetic' if model.antithetic else ''}"


def _facts(model: Model, form: str | int, class_names: Sequence[str] | None) -> dict[str, str]:
    """What a program must know of the net in order to use it."""
    transform = model.transform
    facts = {
        "form": form if isinstance(form, str) else _name(model, form),
        "input_shape": times(model.input_shape),
        "input": "(pixel - mean) * scale",
        "scale": f"{transform.scale:.9g}",
        "mean": json.dumps(0 if transform.mean is None else transform.mean.tolist()),
    }
    if class_names is not None:
        facts["class_names"] = json.dumps(list(class_names), ensure_ascii=False)
    return facts
