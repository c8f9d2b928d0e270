"""Stock Caffe's two files: a prototxt for deployment and a caffemodel."""

from collections.abc import Sequence
from pathlib import Path

from bayescaffe.common.files import scratch_file
from bayescaffe.common.pycaffe import import_pycaffe, write_caffemodel
from bayescaffe.net.stock import StockLayer


def write_caffe(layers: Sequence[StockLayer], name: str, facts: dict[str, str], stem: Path) -> list:
    """Write STEM.prototxt and STEM.caffemodel.

    Args:
        name: what the files call the net.
        facts: what a reader must know, for the comment at the top of the prototxt.
    """
    from google.protobuf import text_format

    net = import_pycaffe("caffe.proto.caffe_pb2").NetParameter(name=name)
    layers = [part for layer in layers for part in _for_opencv(layer)]
    net.layer.extend(layer.param for layer in layers)
    # JSON escapes line breaks, so each fact is one line.
    lines = [f"# {key}: {value}\n" for key, value in facts.items()]
    prototxt, caffemodel = (stem.with_name(stem.name + end) for end in (".prototxt", ".caffemodel"))
    with scratch_file(prototxt) as scratch:
        scratch.write_text("".join(lines) + text_format.MessageToString(net))
    for message, layer in zip(net.layer, layers, strict=True):
        for array in layer.blobs:
            blob = message.blobs.add()
            blob.shape.dim.extend(array.shape)
            blob.data.extend(array.ravel().tolist())  # twice as fast as the array itself
    write_caffemodel(net, caffemodel)
    return [prototxt, caffemodel]


def _for_opencv(layer: StockLayer) -> list[StockLayer]:
    """The layer, and before it what OpenCV needs to read it.

    OpenCV merges a Scale layer with the convolution before it, and fails if the scale is not one
    number for each channel. A ReLU that changes nothing keeps the two apart.
    """
    param = layer.param
    if param.type != "Scale" or len(param.bottom) > 1 or layer.blobs[0].ndim == 1:
        return [layer]
    identity = type(param)(name=f"{param.name}_identity", type="ReLU")
    identity.bottom.append(param.bottom[0])
    identity.top.append(param.top[0])
    identity.relu_param.negative_slope = 1
    scale = type(param)()
    scale.CopyFrom(param)
    scale.bottom[0] = param.top[0]
    return [StockLayer(identity, []), StockLayer(scale, layer.blobs)]
