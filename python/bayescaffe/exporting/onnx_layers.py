"""How each type of layer is written in ONNX: one function a type, and the table of them.

A function takes a `Node` and returns the name of its output, or a list of them.
"""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from bayescaffe.exporting.onnx_graph import Node
from bayescaffe.exporting.onnx_windows import convolution, deconvolution, pooling, within_channel

LINEAR = ("Convolution", "Deconvolution", "InnerProduct", "Scale")
"""Layers whose output is a sum of products of inputs and weights, and of biases."""


def _inner_product(node: Node) -> str:
    param = node.param.inner_product_param
    axis = node.axis(param.axis)
    flat = node.add("Reshape", node.inputs[0], node.graph.integers([0] * axis + [-1]))
    weights, *bias = node.blobs
    result = node.add("MatMul", flat, node.constant(weights if param.transpose else weights.T))
    return node.add("Add", result, node.constant(bias[0])) if bias else result


def _scale(node: Node) -> str:
    param = node.param.scale_param
    result = node.add("Mul", node.inputs[0], _operand(node, param))
    if not param.bias_term:
        return result
    # The biases have the shape of the scale, which may be the second input.
    return node.add("Add", result, node.constant(_widened(node, node.blobs[-1], param.axis)))


def _bias(node: Node) -> str:
    return node.add("Add", node.inputs[0], _operand(node, node.param.bias_param))


def _operand(node: Node, param) -> str:
    """The other operand of Scale and Bias: the first blob, or the second input."""
    if len(node.inputs) == 1:
        return node.constant(_widened(node, node.blobs[0], param.axis))
    if param.axis % len(node.bottoms[0]):
        node.refuse(f"its second input belongs to axis {param.axis}, not to each image (axis 0)")
    ones = len(node.bottoms[0]) - len(node.bottoms[1])
    return node.reshaped(node.inputs[1], (*node.bottoms[1][1:], *[1] * ones))


def _widened(node: Node, blob: np.ndarray, axis: int) -> np.ndarray:
    """The blob with ones behind its shape, so that it lies along the axis of the input."""
    ones = len(node.bottoms[0]) - node.axis(axis) - blob.ndim
    return blob.reshape(*blob.shape, *[1] * ones)


def _batch_norm(node: Node) -> str:
    param = node.param.batch_norm_param
    if param.HasField("use_global_stats") and not param.use_global_stats:
        node.refuse("use_global_stats is false, so it mixes the images of a batch")
    mean, variance, factor = node.blobs
    factor = 1 / factor.item() if factor.item() else 0
    ones = np.ones_like(mean)
    arrays = (ones, 0 * ones, factor * mean, factor * variance)
    constants = [node.constant(array) for array in arrays]
    return node.add("BatchNormalization", node.inputs[0], *constants, epsilon=param.eps)


def _lrn(node: Node) -> str:
    param = node.param.lrn_param
    if param.norm_region == param.WITHIN_CHANNEL:
        return within_channel(node)
    options = {"alpha": param.alpha, "beta": param.beta, "bias": param.k, "size": param.local_size}
    return node.add("LRN", node.inputs[0], **options)


def _relu(node: Node) -> str:
    slope = node.param.relu_param.negative_slope
    return (
        node.add("LeakyRelu", node.inputs[0], alpha=slope)
        if slope
        else node.add("Relu", node.inputs[0])
    )


def _prelu(node: Node) -> str:
    slopes = node.blobs[0]
    ones = len(node.bottoms[0]) - 2
    return node.add("PRelu", node.inputs[0], node.constant(slopes.reshape(-1, *[1] * ones)))


def _elu(node: Node) -> str:
    return node.add("Elu", node.inputs[0], alpha=node.param.elu_param.alpha)


def _one(operator: str) -> Callable[[Node], str]:
    """A layer that is one operator without options."""
    return lambda node: node.add(operator, node.inputs[0])


def _affine(node: Node, param, factor: float = 1) -> str:
    """factor (shift + scale x)."""
    result = node.inputs[0]
    if param.scale * factor != 1:
        result = node.add("Mul", result, node.constant(param.scale * factor))
    if param.shift:
        result = node.add("Add", result, node.constant(param.shift * factor))
    return result


def _power(node: Node) -> str:
    param = node.param.power_param
    result = _affine(node, param)
    return result if param.power == 1 else node.add("Pow", result, node.constant(param.power))


def _exp(node: Node) -> str:
    param = node.param.exp_param
    return node.add("Exp", _affine(node, param, 1 if param.base == -1 else math.log(param.base)))


def _log(node: Node) -> str:
    param = node.param.log_param
    result = node.add("Log", _affine(node, param))
    if param.base == -1:
        return result
    return node.add("Mul", result, node.constant(1 / math.log(param.base)))


def _dropout(node: Node) -> str:
    ratio = node.drop_ratio
    if not ratio:
        return node.inputs[0]
    # Normal noise, since OpenCV has no uniform one.
    noise = node.add("RandomNormalLike", node.inputs[0])
    kept = node.add("Greater", noise, node.constant(NormalDist().inv_cdf(ratio)))
    scaled = node.add("Mul", node.inputs[0], node.constant(1 / (1 - ratio)))
    return node.add("Where", kept, scaled, node.constant(0))


def _softmax(node: Node) -> str:
    return node.add("Softmax", node.inputs[0], axis=node.axis(node.param.softmax_param.axis))


def _concat(node: Node) -> str:
    param = node.param.concat_param
    axis = param.concat_dim if param.HasField("concat_dim") else param.axis
    return node.add("Concat", *node.inputs, axis=node.axis(axis))


def _slice(node: Node) -> list[str]:
    param = node.param.slice_param
    axis = node.axis(param.slice_dim if param.HasField("slice_dim") else param.axis)
    return node.graph.split(node.inputs[0], [top[axis] for top in node.tops], axis)


def _split(node: Node) -> list[str]:
    return [node.inputs[0]] * len(node.tops)


def _eltwise(node: Node) -> str:
    param = node.param.eltwise_param
    values = list(node.inputs)
    if param.operation == param.MAX:
        return node.add("Max", *values)
    if param.operation == param.SUM:
        for i, factor in enumerate(param.coeff):
            if factor != 1:
                values[i] = node.add("Mul", values[i], node.constant(factor))
    result, operator = values[0], "Mul" if param.operation == param.PROD else "Add"
    for value in values[1:]:
        result = node.add(operator, result, value)
    return result


def _reshape(node: Node) -> str:
    """Flatten and Reshape: Caffe has worked out the shape."""
    batch, *shape = node.tops[0]
    if batch != node.bottoms[0][0]:
        node.refuse("it mixes the images of a batch: the first axis of its output is another")
    return node.reshaped(node.inputs[0], shape)


def _crop(node: Node) -> str:
    param = node.param.crop_param
    first = node.axis(param.axis)
    axes = range(first, len(node.tops[0]))
    offsets = list(param.offset) or [0]
    if len(offsets) == 1:
        offsets *= len(axes)
    ends = [offset + node.tops[0][axis] for offset, axis in zip(offsets, axes, strict=True)]
    return node.add("Slice", node.inputs[0], *map(node.graph.integers, (offsets, ends, axes)))


LAYERS: dict[str, Callable[[Node], str | list[str]]] = {
    "AbsVal": _one("Abs"),
    "BatchNorm": _batch_norm,
    "Bias": _bias,
    "Concat": _concat,
    "Convolution": convolution,
    "Crop": _crop,
    "Deconvolution": deconvolution,
    "Dropout": _dropout,
    "ELU": _elu,
    "Eltwise": _eltwise,
    "Exp": _exp,
    "Flatten": _reshape,
    "InnerProduct": _inner_product,
    "LRN": _lrn,
    "Log": _log,
    "PReLU": _prelu,
    "Pooling": pooling,
    "Power": _power,
    "ReLU": _relu,
    "Reshape": _reshape,
    "Scale": _scale,
    "Sigmoid": _one("Sigmoid"),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "TanH": _one("Tanh"),
}
