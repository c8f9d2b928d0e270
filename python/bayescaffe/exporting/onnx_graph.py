"""An ONNX graph that grows node by node, and what the layers of a net tell those who write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from bayescaffe.common.errors import BayesCaffeError

Shape = tuple[int, ...]


@dataclass
class Graph:
    """Nodes and constants. Tensors are named by the layer that they belong to, and a number."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    prefix: str = ""
    """The name of the layer that is being written."""

    def add(self, operator: str, *inputs: str, **attributes) -> str:
        """Add a node; return the name of its output."""
        name = self._name(operator)
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def split(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Add a node that divides a tensor along an axis; return the names of the parts."""
        name = self._name("Split")
        parts = [f"{name}:{part}" for part in range(len(sizes))]
        inputs = [value, self.integers(sizes)]
        self.nodes.append(helper.make_node("Split", inputs, parts, name, axis=axis))
        return parts

    def constant(self, values) -> str:
        """Add a constant tensor of float32; return its name."""
        return self._constant(np.asarray(values, np.float32))

    def integers(self, values: Sequence[int]) -> str:
        """Add a constant list of int64, such as a shape; return its name."""
        return self._constant(np.asarray(values, np.int64))

    def _constant(self, array: np.ndarray) -> str:
        name = self._name("constant")
        # Not `ascontiguousarray`, which makes a list of a single number.
        self.constants.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def _name(self, what: str) -> str:
        return f"{self.prefix}/{what}_{len(self.nodes) + len(self.constants)}"


@dataclass(frozen=True)
class Node:
    """A layer on its way into a graph."""

    graph: Graph
    param: Any
    """Its `LayerParameter`."""
    inputs: Sequence[str]
    """The tensors that it takes."""
    blobs: Sequence[np.ndarray]
    bottoms: Sequence[Shape]
    """The shapes that Caffe gives its inputs; the first number is the batch."""
    tops: Sequence[Shape]
    """The same of its outputs."""
    drop_ratio: float = 0
    """The share that a Dropout layer drops at every run."""

    def refuse(self, why: str) -> NoReturn:
        """Raise: ONNX, or this writer, has nothing for an option of the layer."""
        raise BayesCaffeError(
            f"layer {self.param.name!r} ({self.param.type}) cannot be written as ONNX: {why}"
        )

    def add(self, operator: str, *inputs: str, **attributes) -> str:
        """Add a node to the graph."""
        return self.graph.add(operator, *inputs, **attributes)

    def constant(self, values) -> str:
        """Add a constant of float32 to the graph."""
        return self.graph.constant(values)

    def axis(self, axis: int) -> int:
        """The axis counted from the front; refuses that of the batch, whose size is free."""
        axis += len(self.bottoms[0]) if axis < 0 else 0
        if axis == 0:
            self.refuse("its axis is 0, so it mixes the images of a batch")
        return axis

    def reshaped(self, value: str, shape: Shape) -> str:
        """The tensor with that shape for each image of the batch."""
        return self.add("Reshape", value, self.graph.integers((0, *shape)))
