"""Looks for mistakes in a net before it is trained or drawn from: `check`.

for finding in bayescaffe.check("solver.prototxt").findings:
    print(finding)
"""

import difflib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.data.interface import Shape
from bayescaffe.net import starting
from bayescaffe.net.building import caffe_errors, make_net
from bayescaffe.net.inference_net import TRAIN, inference_net, layers_of_phase
from bayescaffe.net.layer_kinds import is_bayesian, stock_blobs, without_posterior
from bayescaffe.net.messages import read_weights
from bayescaffe.net.net_files import (
    NetFiles,
    Prototxt,
    is_solver,
    read_net_files,
    read_text,
    train_records,
)
from bayescaffe.net.prototext import unknown_fields
from bayescaffe.net.shapes import (
    LayerShape,
    Memory,
    UnknownShape,
    image_shape,
    layer_shapes,
    memory,
    with_inputs,
)

DWARFED = 5
"""KL dwarfs the loss if it adds this many times the loss of a constant guess."""


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
    kl: float | None = None
    """KL(q || p) of all Bayesian layers, in nats."""
    kl_term: float | None = None
    """What it adds to the loss."""
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


def _check_all(found: Check, path: Path, weights: Path | None, shape: Shape | None) -> None:
    if not _check_fields(found, path):
        return
    files = read_net_files(path)
    for one in files.nets:
        if not _check_fields(found, one.path) or not _check_types(found, one):
            return
    _check_layers(found, files)
    if weights is not None:
        _check_stored(found, files.nets[0], weights)
    _check_built(found, files.nets[0], weights, shape)


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
        found.add("error", f"{path}:{line}", f"{place} has no field {name}{_nearest(name, known)}")
    return found.is_good


def _check_types(found: Check, one: Prototxt) -> bool:
    known = list(import_pycaffe("caffe").layer_type_list())
    for layer in one.message.layer:
        if layer.type not in known:
            text = f"Caffe has no layer of type {layer.type!r}{_nearest(layer.type, known)}"
            found.add("error", _place(one, layer.name), text)
    return found.is_good


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


# ---- Layers -------------------------------------------------------------------------------------


def _check_layers(found: Check, files: NetFiles) -> None:
    """Report what the prototxts alone tell."""
    one = files.nets[0]
    decay = files.solver.message.weight_decay if files.solver else 0
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
    decayed, frozen = [], []
    for layer in layers:
        count = stock_blobs(layer)
        means = list(layer.param[:count])
        if decay and (len(means) < count or any(param.decay_mult for param in means)):
            decayed.append(layer.name)
        if any(param.lr_mult == 0 for param in layer.param[: 2 * count]):
            frozen.append(layer.name)
    if decayed:
        found.add(
            "warning",
            files.solver.path,
            f"weight_decay is {decay:g}, and the prior of {_listed(decayed)} decays their weights "
            "already; set decay_mult: 0 in each param of their weights and biases",
        )
    for name in frozen:
        text = "a parameter of this Bayesian layer has lr_mult: 0 and does not learn; remove it, or"
        found.add("warning", _place(one, name), f"{text} make the layer stock")


def _check_stored(found: Check, one: Prototxt, weights: Path) -> None:
    """Report what a caffemodel lacks."""
    stored = {layer.name: layer for layer in read_weights(weights)}
    layers = layers_of_phase(one.message, TRAIN)
    if stock := without_posterior(layers, stored):
        found.add(
            "error",
            weights,
            f"is no posterior: it has stock weights for the Bayesian layers {_listed(stock)}; "
            f"train the net from them by bayescaffe train SOLVER --weights {weights}",
        )
    missing = [layer.name for layer in layers if is_bayesian(layer) and layer.name not in stored]
    if missing:
        found.add("error", weights, f"has no weights for {_listed(missing)} of {one.path}")


# ---- The net itself -----------------------------------------------------------------------------


def _check_built(found: Check, one: Prototxt, weights: Path | None, shape: Shape | None) -> None:
    """Build the net, and report what it says of itself."""
    try:
        message = with_inputs(one.message, TRAIN, shape)
        with caffe_errors(one.path):
            net = make_net(message, weights, phase=TRAIN)
    except UnknownShape as error:
        found.add("warning", one.path, error)
        return
    except BayesCaffeError as error:
        found.add("error", one.path, str(error).removeprefix(f"{one.path}: "))
        return
    layers = layers_of_phase(one.message, TRAIN)
    found.layers, found.memory = layer_shapes(net, layers), memory(net, layers)
    if posteriors := net.posteriors():
        found.kl = sum(posterior.kl for posterior in posteriors.values())
        found.kl_term = sum(posterior.kl_term for posterior in posteriors.values())
        _check_kl(found, one, net, message)
        if weights is not None and found.is_good:
            _check_taus(found, message, posteriors, weights)
        del net
        _check_itemwise(found, one, shape)


def _check_kl(found: Check, one: Prototxt, net, message) -> None:
    guess = sum(_guesses(net, message))
    if not guess or found.kl_term <= DWARFED * guess:
        return
    params = [layer.bayes_param for layer in message.layer if is_bayesian(layer)]
    param = max(params, key=lambda param: param.kl_weight)
    by_rule = starting.kl_weight(param.dataset_size)
    value = min(by_rule, param.kl_weight * guess / found.kl_term)
    found.add(
        "warning",
        one.path,
        f"KL adds {found.kl_term:.3g} to a loss that starts near {guess:.3g}, so the data will "
        f"hardly be learned; kl_weight is {param.kl_weight:g}, try kl_weight: {value:.2g}",
    )


def _guesses(net, message) -> Iterator[float]:
    """The loss of a constant guess, ln C for C classes, in each SoftmaxWithLoss."""
    for layer in message.layer:
        if layer.type == "SoftmaxWithLoss":
            classes = net.blobs[layer.bottom[0]].data.shape[layer.softmax_param.axis]
            yield math.log(classes) * (layer.loss_weight[0] if layer.loss_weight else 1)


def _check_taus(found: Check, message, posteriors: dict, weights) -> None:
    starts = {layer.name: layer.bayes_param.tau_init for layer in message.layer}
    if all(
        math.isclose(posterior.taus[0], starts[name], rel_tol=1e-5)
        for name, posterior in posteriors.items()
    ):
        found.add(
            "warning",
            weights,
            "every tau is where it starts, as tau_init says; train the net first",
        )


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
