"""Lets a net read an image set that `bayescaffe data` wrote, and fit it.

The LMDBs, the mean, the number of classes and the number of test batches change; the rest of the
net and of the solver stays.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.data.description import Description, read_description
from bayescaffe.data.image_set import MEAN
from bayescaffe.net.inference_net import TEST, TRAIN, batch_size, layers_of_phase
from bayescaffe.net.layer_kinds import options
from bayescaffe.net.messages import read_mean
from bayescaffe.net.net_files import NetFiles, Prototxt, is_trained
from bayescaffe.net.prototext import update

_WITH_OUTPUTS = ("Convolution", "InnerProduct")


@dataclass
class _Changes:
    """The image set, and what the nets had to change for it."""

    folder: Path
    train: Description
    test: Description
    notes: list[str]
    classifiers: dict[str, int] = field(default_factory=dict)
    """The layers whose number of outputs changed, and how many they had."""
    test_batches: int | None = None

    def source(self, phase: int) -> str:
        """The LMDB of a phase."""
        return str(self.folder / f"{(self.train if phase == TRAIN else self.test).split}_lmdb")

    def note(self, text: str) -> None:
        """Tell it once, however many layers it concerns."""
        if text not in self.notes:
            self.notes.append(text)


def with_data(
    files: NetFiles, folder: str | os.PathLike | None, notes: list[str]
) -> tuple[NetFiles, list[str]]:
    """The nets and the solver, changed for the image set in `folder`, if there is one.

    Returns:
        the files, and the names of the layers whose number of outputs changed.
    """
    if folder is None:
        return files, []
    folder = Path(folder)
    changes = _Changes(folder, *_descriptions(folder), notes)
    nets = [
        _changed(one, changes, (TEST, TRAIN) if number == 0 else (TEST,))
        for number, one in enumerate(files.nets)
    ]
    if changes.classifiers:
        old = ", ".join(dict.fromkeys(map(str, changes.classifiers.values())))
        notes.append(
            f"{len(changes.train.images_per_class)} classes in place of {old}: "
            + ", ".join(changes.classifiers)
        )
    solver = files.solver
    if solver and changes.test_batches and solver.message.test_iter:
        after = _copy(solver.message)
        after.test_iter[:] = [changes.test_batches] * len(after.test_iter)
        solver = _written(solver, after)
    return NetFiles(nets, solver), list(changes.classifiers)


def _descriptions(folder: Path) -> tuple[Description, Description]:
    """What the LMDBs for training and for testing hold: those for validation, if there are any."""
    found = {name: read_description(folder / f"{name}_lmdb") for name in ("train", "val", "test")}
    if found["train"] is None:
        raise BayesCaffeError(
            f"{argument('data', str(folder))}: has no train_lmdb that `bayescaffe data` wrote; "
            "`bayescaffe data folder` and `bayescaffe data array` write one"
        )
    return found["train"], found["val"] or found["test"] or found["train"]


def _changed(one: Prototxt, changes: _Changes, phases: Sequence[int]) -> Prototxt:
    net = _copy(one.message)
    found = False
    # A layer of both phases reads the images of the last one, TRAIN.
    for phase in phases:
        layers = layers_of_phase(net, phase)
        for layer in layers:
            if layer.type == "Data":
                found = True
                _set_source(layer, changes, phase, one.path)
        _set_classes(layers, changes, one.path)
    if not found and is_trained(net):
        raise BayesCaffeError(
            f"{one.path}: {argument('data', str(changes.folder))} needs a layer of type Data in "
            "the net"
        )
    return _written(one, net)


def _set_source(layer, changes: _Changes, phase: int, path: Path) -> None:
    param, shape = layer.transform_param, changes.train.shape
    if param.crop_size > min(shape[1:]):
        raise BayesCaffeError(
            f"{path}: crop_size of the layer {layer.name!r} is {param.crop_size}, but the images "
            f"in {changes.folder} are of {times(shape)}; write larger ones, by --size of "
            "`bayescaffe data folder`, or lower crop_size"
        )
    layer.data_param.source = changes.source(phase)
    layer.data_param.backend = layer.data_param.LMDB
    if param.mean_file and not _fits(param.mean_file, shape):
        changes.note(f"{changes.folder / MEAN} in place of {param.mean_file}")
        param.mean_file = str(changes.folder / MEAN)
    if len(param.mean_value) not in (0, 1, shape[0]):
        changes.note(f"the mean of {changes.folder} in place of {len(param.mean_value)} mean_value")
        param.mean_value[:] = changes.train.mean
    if phase == TEST:
        changes.test_batches = math.ceil(changes.test.images / batch_size(layer))


def _fits(mean_file: str, shape: Sequence[int]) -> bool:
    return os.path.exists(mean_file) and read_mean(mean_file).shape == tuple(shape)


def _set_classes(layers: Sequence, changes: _Changes, path: Path) -> None:
    classes = len(changes.train.images_per_class)
    for blob in _scores(layers):
        layer = _maker(layers, blob)
        if layer is None:
            changes.note(f"{path}: see that {blob!r} has {classes} channels, one for each class")
        elif options(layer).num_output != classes:
            changes.classifiers[layer.name] = options(layer).num_output
            options(layer).num_output = classes


def _scores(layers: Sequence) -> list[str]:
    """The blobs that have a number for each class."""
    for kind in ("SoftmaxWithLoss", "Softmax"):
        if found := [layer.bottom[0] for layer in layers if layer.type == kind]:
            return list(dict.fromkeys(found))
    return []


def _maker(layers: Sequence, blob: str):
    """The layer with weights that decides how many channels a blob has; None if it is not clear."""
    for layer in reversed(layers):
        if blob not in layer.top:
            continue
        if layer.type.removeprefix("Bayes") in _WITH_OUTPUTS:
            return layer
        if len(layer.bottom) != 1:
            return None
        blob = layer.bottom[0]
    return None


def _copy(message):
    result = type(message)()
    result.CopyFrom(message)
    return result


def _written(one: Prototxt, after) -> Prototxt:
    return replace(one, text=update(one.text, one.message, after, one.path), message=after)
