"""Layers that move a window over an image, in ONNX: convolutions and pooling."""

from collections.abc import Sequence

import numpy as np

from bayescaffe.exporting.onnx_graph import Node


def convolution(node: Node) -> str:
    """Any number of axes, with groups and dilation."""
    return _convolution(node, "Conv")


def deconvolution(node: Node) -> str:
    """The transposed convolution."""
    return _convolution(node, "ConvTranspose")


def _convolution(node: Node, operator: str) -> str:
    if len(node.inputs) > 1:
        node.refuse("it has several inputs")
    param, weights = node.param.convolution_param, node.blobs[0]
    if node.axis(param.axis) != 1:
        node.refuse(f"its axis is {param.axis}, and ONNX has the channels at axis 1")
    axes = weights.ndim - 2
    pads = _each(param.pad, (param.pad_h, param.pad_w), axes, 0)
    return node.add(
        operator,
        node.inputs[0],
        *map(node.constant, node.blobs),
        kernel_shape=weights.shape[2:],
        strides=_each(param.stride, (param.stride_h, param.stride_w), axes, 1),
        pads=[*pads, *pads],
        dilations=_each(param.dilation, (), axes, 1),
        group=param.group,
    )


def _each(values: Sequence[int], named: Sequence[int], axes: int, default: int) -> list[int]:
    """An option of a convolution for each axis: given once, for each, as _h and _w, or not."""
    if any(named):
        return list(named)
    values = list(values) or [default]
    return values * axes if len(values) == 1 else values


def pooling(node: Node) -> str:
    """Maximum and average, with Caffe's sizes."""
    param, value = node.param.pooling_param, node.inputs[0]
    if param.pool == param.STOCHASTIC or len(node.tops) > 1:
        node.refuse("it is not a plain maximum or average (pool: MAX or AVE, one top)")
    is_max = param.pool == param.MAX
    if param.global_pooling:
        return node.add("GlobalMaxPool" if is_max else "GlobalAveragePool", value)
    kernel = _pair(param.kernel_size, param.kernel_h, param.kernel_w)
    strides = _pair(param.stride, param.stride_h, param.stride_w)
    pads = _pair(param.pad, param.pad_h, param.pad_w)
    ends = _end_pads(node, kernel, strides, pads)
    options = {"kernel_shape": kernel, "strides": strides, "pads": [*pads, *ends]}
    if is_max:
        return node.add("MaxPool", value, **options)
    # Caffe's averages count its own padding, but not what lies behind it in the last windows.
    result = node.add("AveragePool", value, **options, count_include_pad=int(any(pads)))
    if any(pads) and any(end > pad for end, pad in zip(ends, pads, strict=True)):
        result = node.add("Mul", result, node.constant(_corrections(node, kernel, strides, pads)))
    return result


def within_channel(node: Node) -> str:
    """LRN within a channel: x (1 + alpha average(x^2))^-beta, over a window around each pixel."""
    param, value = node.param.lrn_param, node.inputs[0]
    average = node.add(
        "AveragePool",
        node.add("Mul", value, value),
        kernel_shape=[param.local_size] * 2,
        pads=[(param.local_size - 1) // 2] * 4,
        count_include_pad=1,
    )
    scale = node.add("Mul", average, node.constant(param.alpha))
    scale = node.add("Add", scale, node.constant(1))
    return node.add("Mul", value, node.add("Pow", scale, node.constant(-param.beta)))


def _pair(size: int, height: int, width: int) -> list[int]:
    return [height, width] if height or width else [size, size]


def _end_pads(node: Node, kernel: list[int], strides: list[int], pads: list[int]) -> list[int]:
    """The padding behind the image with which ONNX has as many windows as Caffe.

    Caffe rounds the number of windows up, so the last one may reach beyond the padding.
    """
    ends = []
    for axis in range(2):
        size, windows = node.bottoms[0][2 + axis], node.tops[0][2 + axis]
        reach = (windows - 1) * strides[axis] + kernel[axis]
        end = max(0, reach - size - pads[axis])
        if end >= kernel[axis]:
            node.refuse("its last window lies wholly outside of the image")
        ends.append(end)
    return ends


def _corrections(node: Node, kernel: list[int], strides: list[int], pads: list[int]) -> np.ndarray:
    """By what to multiply averages that count all padding, for each window."""
    factors = []
    for axis in range(2):
        size, windows = node.bottoms[0][2 + axis], node.tops[0][2 + axis]
        starts = np.arange(windows) * strides[axis] - pads[axis]
        ends = np.minimum(starts + kernel[axis], size + pads[axis])
        factors.append(kernel[axis] / (ends - starts))
    return np.outer(*factors)
