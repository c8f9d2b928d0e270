"""The LMDBs that a net reads, and whether they fit together by what their descriptions tell."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.data.description import Description, read_description
from bayescaffe.data.lmdb import LmdbImages
from bayescaffe.net.inference_net import TEST, TRAIN, layers_of_phase

log = logging.getLogger(__name__)


def lmdb_source(layer) -> str | None:
    """The LMDB that a layer reads, None if it reads none."""
    is_lmdb = layer.type == "Data" and layer.data_param.backend == layer.data_param.LMDB
    return layer.data_param.source if is_lmdb else None


def lmdb_images(layer) -> LmdbImages | None:
    """The images in the LMDB that a layer reads, as it decodes them; None if it is not here."""
    source, param = lmdb_source(layer), layer.transform_param
    if source is None or not os.path.exists(source):
        return None
    color = True if param.force_color else False if param.force_gray else None
    return LmdbImages(os.path.abspath(source), color)


def check_own_data(nets: Mapping[str, Any]) -> None:
    """Raise if the LMDBs of a net differ in what it must be able to rely on.

    LMDBs without a description are taken on trust.

    Args:
        nets: by path, the `NetParameter`s for training and for testing, or one for both.
    """
    found: dict[str, Description] = {}
    for path, net in nets.items():
        for layer in (*layers_of_phase(net, TRAIN), *layers_of_phase(net, TEST)):
            source = lmdb_source(layer)
            if source is None or source in found:
                continue
            description = read_description(source)
            if description is not None:
                found[source] = description
                _check_mean(layer, description, path)
    if not found:
        return
    first, *others = found
    for other in others:
        for name in ("shape", "channels", "class_names"):
            one, two = (getattr(found[source], name) for source in (first, other))
            if one != two:
                raise BayesCaffeError(
                    f"{' and '.join(nets)}: the LMDBs do not fit together: {name} is "
                    f"{_shown(one)} in {first}, but {_shown(two)} in {other}"
                )


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value or "not known")


def _check_mean(layer, description: Description, path: str) -> None:
    """Warn of a mean for the other order of colours."""
    given = np.array(layer.transform_param.mean_value)
    mean = np.array(description.mean)
    if len(given) != 3 or description.channels not in ("bgr", "rgb"):
        return
    if np.abs(given - mean[::-1]).max() < 1 <= np.abs(given - mean).max():
        log.warning(
            "%s: mean_value of the layer %r is %s, which is the mean of %s in the wrong order: its "
            "colours are %s, and their mean is %s",
            *(path, layer.name, ", ".join(f"{x:g}" for x in given), layer.data_param.source),
            *(description.channels, ", ".join(f"{x:.2f}" for x in mean)),
        )
