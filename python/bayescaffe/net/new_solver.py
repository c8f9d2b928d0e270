"""A solver for a net that has none."""

import json
import math
import os
from pathlib import Path

from bayescaffe.data.lmdb import LmdbImages
from bayescaffe.net.inference_net import BATCH_FIELDS, TEST, TRAIN, batch_size, layers_of_phase
from bayescaffe.net.net_files import epoch_iterations

EPOCHS = 20
LEAST_ITERATIONS = 1000
"""A few hundred pictures need more epochs: after 20, a Bayesian net is behind its stock net."""

_TEXT = """\
net: {net}
{weights}{test}# Falls to 0 along a line.
base_lr: {base_lr}
lr_policy: "poly"
power: 1
momentum: 0.9
# {epochs} epochs
max_iter: {max_iter}
display: {display}
snapshot: {max_iter}
snapshot_prefix: {prefix}
random_seed: 1
solver_mode: CPU
"""
_TEST = """\
# All test images, once an epoch
test_iter: {test_iter}
test_interval: {epoch}
"""


def new_solver(net, path: Path, dataset_size: int, weights: Path | None) -> str:
    """The text of a solver that trains the net at `path` for some epochs, and tests each epoch."""
    layers = {phase: _data_layers(net, phase) for phase in (TRAIN, TEST)}
    epoch = epoch_iterations(net, dataset_size)
    epochs = max(EPOCHS, math.ceil(LEAST_ITERATIONS / epoch))
    tests = [
        math.ceil(len(LmdbImages(layer.data_param.source)) / batch_size(layer))
        for layer in layers[TEST]
        if layer.type == "Data" and os.path.exists(layer.data_param.source)
    ]
    # Pixels of 0 to 255 make large gradients.
    has_large_inputs = any(layer.transform_param.scale == 1 for layer in layers[TRAIN])
    return _TEXT.format(
        net=_quoted(path),
        weights="" if weights is None else f"weights: {_quoted(weights)}\n",
        test=_TEST.format(test_iter=max(tests), epoch=epoch) if tests else "",
        base_lr=0.001 if has_large_inputs else 0.01,
        epochs=epochs,
        max_iter=epochs * epoch,
        display=min(100, epoch),
        prefix=_quoted(path.with_suffix("")),
    )


def _quoted(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)


def _data_layers(net, phase: int) -> list:
    return [
        layer
        for layer in layers_of_phase(net, phase)
        if any(layer.HasField(name) for name in BATCH_FIELDS)
    ]
