"""Looks for mistakes in a net before it is trained or drawn from: `check`.

for finding in bayescaffe.check("solver.prototxt").findings:
    print(finding)
"""

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError, nearest
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.data.interface import Shape
from bayescaffe.net.building import caffe_errors, make_net
from bayescaffe.net.inference_net import TRAIN, inference_net, layers_of_phase
from bayescaffe.net.layer_kinds import is_bayesian, stock_blobs, without_posterior
from bayescaffe.net.memory import Memory, memory
from bayescaffe.net.messages import read_text, read_weights
from bayescaffe.net.net_files import (
    NetFiles,
    Prototxt,
    is_solver,
    read_net_files,
    train_records,
)
from bayescaffe.net.objective import Objective, objective_of
from bayescaffe.net.prototext import unknown_fields
from bayescaffe.net.shapes import (
    LayerShape,
    UnknownShape,
    image_shape,
    layer_shapes,
    with_inputs,
)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or may be."""

    severity: str
    """error, warning or note"""
    where: str
    """The file, and the layer or the line."""
    text: str
    """What is wrong, and what to change."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.text}"


@dataclass
class Check:
    """What `check` has found."""

    findings: list[Finding] = field(default_factory=list)
    layers: list[LayerShape] = field(default_factory=list)
    """Of phase TRAIN, or of the net for deployment; none if the net could not be built."""
    memory: Memory | None = None
    """What training takes."""
    stock_memory: Memory | None = None
    """What it would take with stock layers; None if all are stock."""
    kl: float | None = None
    """KL(q || p) of all Bayesian layers, in nats."""
    kl_term: float | None = None
    """What it adds to the loss."""
    objective: Objective | None = None
    """The loss and kl_weight; None if the net could not be built."""
    is_itemwise: bool | None = None
    """Whether draws are taken image by image; None if that is not known."""

    @property
    def is_good(self) -> bool:
        """Whether there is no error; there may be warnings."""
        return all(finding.severity != "error" for finding in self.findings)

    def add(self, severity: str, where: object, text: object) -> None:
        """Add a finding."""
        self.findings.append(Finding(severity, str(where), str(text)))


def check(
    net: str | os.PathLike,
    weights: str | os.PathLike | None = None,
    *,
    shape: Shape | None = None,
) -> Check:
    """Check a net without training it.

    Args:
        net: a prototxt for training or for deployment, or a solver.
        weights: a caffemodel of the net.
        shape: channels, height, width of the images, if the net's data is not here.
    """
    found = Check()
    try:
        _check_all(found, Path(net), None if weights is None else Path(weights), shape)
    except BayesCaffeError as error:
        found.add("error", net, str(error).removeprefix(f"{net}: "))
    return found


def check_training(files: NetFiles, weights: Path | None = None) -> Check:
    """What `check` finds in a net that is about to be trained, from `weights` on.

    Caffe itself tells what makes a training impossible, so this leaves it out.
    """
    found = Check(objective=objective_of(layers_of_phase(files.nets[0].message, TRAIN)))
    _check_layers(found, files)
    # What a Python layer does when it is built, such as opening a camera, it should do once.
    if all(layer.type != "Python" for layer in files.nets[0].message.layer):
        with contextlib.suppress(BayesCaffeError):
            _check_objective(found, files.nets[0], *_build(files.nets[0], weights, None))
    return found


def _check_all(found: Check, path: Path, weights: Path | None, shape: Shape | None) -> None:
    if not _check_fields(found, path):
        return
    files = read_net_files(path)
    for one in files.nets:
        if not _check_fields(found, one.path) or not _check_types(found, one):
            return
    if not _check_numbers(found, files):
        return
    _check_layers(found, files)
    if weights is not None:
        _check_stored(found, files.nets[0], weights)
    _check_built(found, files, weights, shape)


# ---- Text ---------------------------------------------------------------------------------------


def _check_fields(found: Check, path: Path) -> bool:
    """Report fields that Caffe does not know. Returns whether it knows them all."""
    text = read_text(path)
    messages = import_pycaffe("caffe.proto.caffe_pb2")
    kind, called = (
        (messages.SolverParameter, "a solver")
        if is_solver(text)
        else (messages.NetParameter, "a net")
    )
    for line, name, within, known in unknown_fields(text, kind.DESCRIPTOR):
        place = within or called
        found.add("error", f"{path}:{line}", f"{place} has no field {name}{_hint(name, known)}")
    return found.is_good


def _check_types(found: Check, one: Prototxt) -> bool:
    known = list(import_pycaffe("caffe").layer_type_list())
    for layer in one.message.layer:
        if layer.type not in known:
            text = f"Caffe has no layer of type {layer.type!r}{_hint(layer.type, known)}"
            found.add("error", _place(one, layer.name), text)
    return found.is_good


def _check_numbers(found: Check, files: NetFiles) -> bool:
    """Report numbers that Caffe refuses, also of data layers, which are not built here."""
    caffe = import_pycaffe("caffe")
    checked = [(one, caffe.check_net_limits) for one in files.nets]
    if files.solver is not None:
        checked.append((files.solver, caffe.check_solver_limits))
    for one, check_limits in checked:
        try:
            check_limits(one.message.SerializeToString())
        except caffe.Error as error:
            found.add("error", one.path, error.message)
    return found.is_good


def _hint(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


# ---- Layers -------------------------------------------------------------------------------------


def _check_layers(found: Check, files: NetFiles) -> None:
    """Report what the prototxts alone tell."""
    one = files.nets[0]
    records = train_records(one.message)
    layers = [layer for layer in layers_of_phase(one.message, TRAIN) if is_bayesian(layer)]
    sizes = {layer.name: layer.bayes_param.dataset_size for layer in layers}
    for path, count in records.items():
        wrong = {name: size for name, size in sizes.items() if size and size != count}
        if wrong:
            text = (
                f"dataset_size is {_listed(set(wrong.values()))} in {_listed(wrong)}, but {path} "
            )
            found.add(
                "warning", one.path, text + f"has {count:,} records; set dataset_size: {count}"
            )
    for layer in layers:
        if any(param.lr_mult == 0 for param in layer.param[: 2 * stock_blobs(layer)]):
            text = "a parameter of this Bayesian layer has lr_mult: 0 and does not learn; remove it"
            found.add("warning", _place(one, layer.name), f"{text}, or make the layer stock")


def _check_stored(found: Check, one: Prototxt, weights: Path) -> None:
    """Report what a caffemodel lacks."""
    stored = {layer.name: layer for layer in read_weights(weights)}
    layers = layers_of_phase(one.message, TRAIN)
    if stock := without_posterior(layers, stored):
        found.add(
            "error",
            weights,
            f"is no posterior: it has stock weights for the Bayesian layers {_listed(stock)}; "
            "train the net from them",
        )
    missing = [layer.name for layer in layers if is_bayesian(layer) and layer.name not in stored]
    if missing:
        found.add("error", weights, f"has no weights for {_listed(missing)} of {one.path}")


# ---- The net itself -----------------------------------------------------------------------------


def _check_built(found: Check, files: NetFiles, weights: Path | None, shape: Shape | None) -> None:
    """Build the net, and report what it says of itself."""
    one = files.nets[0]
    try:
        net, layers = _build(one, weights, shape)
    except UnknownShape as error:
        found.add("warning", one.path, f"{error}; until then shapes, memory and KL are not checked")
        return
    except BayesCaffeError as error:
        found.add("error", one.path, str(error).removeprefix(f"{one.path}: "))
        return
    found.layers = layer_shapes(net, layers)
    solver = files.solver.message.type if files.solver is not None else "SGD"
    found.memory, stock = memory(net, layers, solver)
    if any(is_bayesian(layer) for layer in layers):
        found.stock_memory = stock
    posteriors = _check_objective(found, one, net, layers)
    if posteriors:
        if weights is not None and found.is_good:
            _check_taus(found, layers, posteriors, weights)
        del net
        _check_itemwise(found, one, shape)


def _build(one: Prototxt, weights: Path | None, shape: Shape | None) -> tuple:
    """The net of phase TRAIN and its layers."""
    message = with_inputs(one.message, TRAIN, shape)
    with caffe_errors(one.path):
        net = make_net(message, weights, phase=TRAIN)
    return net, layers_of_phase(one.message, TRAIN)


def _check_objective(found: Check, one: Prototxt, net, layers: Sequence) -> dict:
    """Report a KL that is too strong, or an alpha without use. Returns the net's posteriors."""
    found.objective = objective_of(layers, net)
    _check_alpha(found, one, net, layers)
    posteriors = net.posteriors()
    if posteriors:
        found.kl = sum(posterior.kl for posterior in posteriors.values())
        found.kl_term = sum(posterior.kl_term for posterior in posteriors.values())
        if found.objective.is_strong(found.kl_term):
            found.add("warning", one.path, found.objective.strong_kl(found.kl_term))
    return posteriors


def _check_alpha(found: Check, one: Prototxt, net, layers: Sequence) -> None:
    """Report a loss of several draws that gets one, or the same one several times."""
    for layer in layers:
        if not layer.loss_param.HasField("alpha"):
            continue
        where = _place(one, layer.name)
        if layer.type != "SoftmaxWithLoss":
            text = f"loss_param.alpha is for SoftmaxWithLoss, and {layer.type} ignores it"
            found.add("warning", where, text)
            continue
        scores, labels = (net.blobs[name].shape[0] for name in layer.bottom[:2])
        copies = scores // labels
        if copies == 1:
            text = (
                "alpha has no effect, as there are as many scores as labels; repeat the training "
                "images with a Tile layer of axis: 0"
            )
            found.add("warning", where, text)
        same = [
            other.name
            for other in layers
            if is_bayesian(other)
            and other.bayes_param.draws_per_batch % copies
            and not other.bayes_param.local_reparametrization
        ]
        if same:
            text = (
                f"the {copies} copies of an image share draws in {_listed(same)}; set "
                f"draws_per_batch: {copies} there"
            )
            found.add("warning", where, text)


def _check_taus(found: Check, layers: Sequence, posteriors: dict, weights: Path) -> None:
    """Report what the taus of a caffemodel tell."""
    bayesian = [layer for layer in layers if layer.name in posteriors]
    taus = {name: posterior.taus[0] for name, posterior in posteriors.items()}
    if all(
        math.isclose(taus[layer.name], layer.bayes_param.tau_init, rel_tol=1e-5)
        for layer in bayesian
    ):
        text = "every tau is where it starts, as tau_init says; train the net first"
        found.add("warning", weights, text)
        return
    for text in (found.objective.noisy(taus), found.objective.at_floor(taus, bayesian)):
        if text:
            found.add("warning", weights, text)


def _check_itemwise(found: Check, one: Prototxt, shape: Shape | None) -> None:
    try:
        inference = inference_net(one.message)
    except BayesCaffeError:
        return  # no classifier, or one with several inputs
    try:
        inference.set_shape(image_shape(inference.source, shape))
        with caffe_errors(one.path):
            layer = make_net(inference.net, None).mixing_layer(inference.output)
    except BayesCaffeError as error:
        found.add("warning", one.path, str(error).removeprefix(f"{one.path}: "))
        return
    found.is_itemwise = layer is None
    if layer is not None:
        found.add(
            "note",
            _place(one, layer),
            "images of a batch depend on each other here, so draws are taken for whole batches",
        )


def _place(one: Prototxt, layer: str) -> str:
    return f"{one.path}, layer {layer!r}"


def _listed(names) -> str:
    return ", ".join(map(str, names))
