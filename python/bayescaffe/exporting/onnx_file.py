"""ONNX files: the layers of a net as one graph with a free batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper

from bayescaffe import __version__
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.exporting.onnx_graph import Graph, Node, Shape
from bayescaffe.exporting.onnx_layers import LAYERS, LINEAR

if TYPE_CHECKING:
    from bayescaffe.net.stock import StockLayer

# Old enough for the readers in use. Before opset 15, some take BatchNormalization for training.
OPSET, IR_VERSION = 15, 8


def write_onnx(
    layers: Sequence[StockLayer],
    shapes: dict[str, Shape],
    output: str,
    name: str,
    facts: dict[str, str],
    stem: Path,
) -> Path:
    """Write STEM.onnx.

    Args:
        layers: layers with taus or a drop_ratio give noise at every run.
        shapes: the shape of each blob in Caffe.
        output: the blob to give.
        name: what the file calls the net.
        facts: what a reader must know, for the file's metadata.
    """
    graph, values = Graph(), {}
    inputs = []
    for layer in layers:
        param = layer.param
        if param.type == "Input":
            inputs += [_value(top, shapes[top]) for top in param.top]
            values.update((top, top) for top in param.top)
            continue
        results = _add_layer(graph, layer, values, shapes)
        values.update(zip(param.top, results, strict=True))
    graph.nodes.append(helper.make_node("Identity", [values[output]], [output]))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes, name, inputs, [_value(output, shapes[output])], graph.constants
        ),
        producer_name="bayescaffe",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, facts)
    path = stem.with_name(f"{stem.name}.onnx")
    with scratch_file(path) as scratch:
        onnx.save(model, scratch, format="protobuf")
        onnx.checker.check_model(scratch)
    return path


def _add_layer(
    graph: Graph, layer: StockLayer, values: dict[str, str], shapes: dict[str, Shape]
) -> list[str]:
    param = layer.param
    write = LAYERS.get(param.type)
    if write is None:
        raise BayesCaffeError(
            f"layer {param.name!r} ({param.type}) cannot be written as ONNX; supported are "
            f"{', '.join(sorted(LAYERS, key=str.lower))}"
        )
    graph.prefix = param.name
    node = Node(
        graph,
        param,
        [values[bottom] for bottom in param.bottom],
        layer.blobs,
        [shapes[bottom] for bottom in param.bottom],
        [shapes[top] for top in param.top],
        layer.drop_ratio,
    )
    results = _with_noise(node, layer.taus) if layer.taus else write(node)
    return results if isinstance(results, list) else [results]


def _with_noise(node: Node, taus: Sequence[np.ndarray]) -> str:
    """A layer with normal weights, by local reparametrisation.

    Given its input x, an output sum(w x) is normal with the mean sum(m x) and the variance
    sum(tau^2 m^2 x^2): the same layer, of the squares. Noise on the activations is not a constant,
    so no reader can take it for one, as happens to noise on weights.
    """
    if node.param.type not in LINEAR:
        node.refuse(f"noise on activations is possible for {', '.join(LINEAR)} only")
    write = LAYERS[node.param.type]
    (value,) = node.inputs
    mean = write(node)
    squares = [np.square(tau * blob) for tau, blob in zip(taus, node.blobs, strict=True)]
    variance = write(replace(node, inputs=[node.add("Mul", value, value)], blobs=squares))
    # Fast convolutions may round a variance of zero to less.
    deviation = node.add("Sqrt", node.add("Relu", variance))
    noise = node.add("RandomNormalLike", mean)
    return node.add("Add", mean, node.add("Mul", deviation, noise))


def _value(name: str, shape: Shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape[1:]])
