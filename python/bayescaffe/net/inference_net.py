"""The net for inference: it takes images and gives class probabilities.

It is made from a prototxt for training or for deployment. These functions take and return
`NetParameter` messages, and build no net.
"""

from dataclasses import dataclass
from typing import Any

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.net.layer_kinds import data_tops, is_bayesian

TRAIN, TEST = 0, 1  # caffe.TRAIN, caffe.TEST
# Layers that only look at what others compute.
ONLOOKERS = ("Accuracy", "Silence")
# Fields of a data layer that tell the size of its batches.
BATCH_FIELDS = ("data_param", "image_data_param", "memory_data_param", "hdf5_data_param")


@dataclass(frozen=True)
class InferenceNet:
    """A net for inference; its layers have their names, so its draws are the original's."""

    net: Any
    """The `NetParameter`; the shape of its one input is not set yet."""
    source: Any
    """The `LayerParameter` of the data layer whose place the input has taken."""
    declared_shape: tuple[int, ...] | None
    """Shape of one image before it is transformed, if the source tells it."""
    output: str
    """The blob of class probabilities."""
    is_random: bool
    """Whether draws differ from one another."""

    def set_shape(self, shape: tuple[int, int, int]) -> None:
        """Set channels, height and width of an input image; batches stay as large as they were."""
        input_layer = next(layer for layer in self.net.layer if layer.name == self.source.name)
        del input_layer.input_param.shape[:]
        input_layer.input_param.shape.add().dim.extend((batch_size(self.source), *shape))


def layers_of_phase(net, phase: int) -> list:
    """The layers that the net has in phase TRAIN or TEST, by Caffe's rules `include`, `exclude`."""
    state = net.state

    def meets(rule) -> bool:
        return (
            (not rule.HasField("phase") or rule.phase == phase)
            and (not rule.HasField("min_level") or state.level >= rule.min_level)
            and (not rule.HasField("max_level") or state.level <= rule.max_level)
            and set(rule.stage) <= set(state.stage)
            and not set(rule.not_stage) & set(state.stage)
        )

    return [
        layer
        for layer in net.layer
        if (any(map(meets, layer.include)) if layer.include else not any(map(meets, layer.exclude)))
    ]


def inference_net(net, output: str | None = None, mc_dropout: bool = False) -> InferenceNet:
    """Turn any classifier, in today's format, into a net for inference.

    It has the layers of phase TEST that the class scores depend on, an `Input` layer instead of
    the one that gave the images, and a `Softmax` at the end if there was none.

    Args:
        output: the blob of class scores, or of probabilities if a Softmax layer made it. Without
            it, the scores in the net's SoftmaxWithLoss (the one with the greatest loss_weight), or
            the only output of a net without loss.
        mc_dropout: let Dropout layers drop in phase TEST too, a mask for each draw.
    """
    layers = _legacy_inputs(net) + layers_of_phase(net, TEST)
    scores, softmax_param = _class_scores(layers, output)

    layers, needed = _ancestors(layers, scores)
    inputs = [
        (layer, top)
        for layer in layers
        if not layer.bottom and layer.type != "Parameter"
        for top in layer.top
        if top in needed
    ]
    if len(inputs) != 1:
        found = ", ".join(repr(top) for _, top in inputs) or "none"
        raise BayesCaffeError(
            f"the net must have one input, the images, but {scores!r} depends on: {found}"
        )
    source, image_blob = inputs[0]

    result = type(net)(name=net.name)
    result.state.CopyFrom(net.state)
    for layer in layers:
        if layer is source:
            result.layer.add(name=layer.name, type="Input", top=[image_blob])
        else:
            result.layer.add().CopyFrom(layer)
            if layer.HasField("bayes_param"):
                # Draws do not depend on the prior, and its file need not be here.
                for field in ("prior_from", "prior_scale"):
                    result.layer[-1].bayes_param.ClearField(field)
    if mc_dropout:
        dropouts = [layer for layer in result.layer if layer.type == "Dropout"]
        if not dropouts:
            raise BayesCaffeError(f"{argument('mc_dropout', True)}: the net has no Dropout layer")
        for layer in dropouts:
            layer.dropout_param.sample_weights_test = True
    output = scores
    if not _is_softmax(result.layer, scores):
        output = _unused_name(result.layer, "prob")
        softmax = result.layer.add(name=output, type="Softmax", bottom=[scores], top=[output])
        softmax.softmax_param.CopyFrom(softmax_param)
    return InferenceNet(
        net=result,
        source=source,
        declared_shape=declared_shape(source, image_blob),
        output=output,
        is_random=any(map(is_random, result.layer)),
    )


def _class_scores(layers: list, output: str | None) -> tuple[str, object]:
    """The blob of class scores or probabilities, and how Softmax is to treat it."""
    softmax_param = type(layers[0].softmax_param)() if layers else None
    if output is not None:
        blobs = dict.fromkeys(top for layer in layers for top in layer.top)
        if output not in blobs:
            raise BayesCaffeError(
                f"{argument('output', output)}: the net has no such blob in phase TEST; it has "
                f"{', '.join(blobs)}"
            )
        return output, softmax_param
    losses = [layer for layer in layers if layer.type.endswith("Loss")]
    if any(layer.type != "SoftmaxWithLoss" for layer in losses):
        found = ", ".join(f"{layer.name!r} ({layer.type})" for layer in losses)
        raise BayesCaffeError(
            f"bayescaffe needs class scores, but the net's loss is not SoftmaxWithLoss: {found}; "
            "if there are scores of classes that exclude each other, name their blob as "
            f"{argument('output')}"
        )
    if losses:
        # Auxiliary classifiers have a smaller weight than the classifier of the net.
        weights = [layer.loss_weight[0] if layer.loss_weight else 1 for layer in losses]
        losses = [one for one, w in zip(losses, weights, strict=True) if w == max(weights)]
        candidates = list(dict.fromkeys(layer.bottom[0] for layer in losses))
        softmax_param = losses[0].softmax_param
    else:
        candidates = _ends(layers)
    if len(candidates) != 1:
        raise BayesCaffeError(
            "bayescaffe needs one blob of class scores, but found "
            f"{', '.join(candidates) or 'none'}; name it as {argument('output')}"
        )
    return candidates[0], softmax_param


def _ends(layers: list) -> list[str]:
    """The blobs that no layer takes, without those that data layers give and KL terms."""
    ends = {}
    for layer in layers:
        if layer.type in ONLOOKERS:
            continue
        for bottom in layer.bottom:
            ends.pop(bottom, None)
        if layer.bottom:
            ends.update(dict.fromkeys(data_tops(layer)))
    return list(ends)


def _ancestors(layers: list, blob: str) -> tuple[list, set[str]]:
    """The layers that `blob` depends on, and all blobs that they take or that is wanted."""
    needed = {blob}
    kept = []
    for layer in reversed(layers):
        if needed.intersection(layer.top) and layer.type not in ONLOOKERS:
            kept.insert(0, layer)
            needed.update(layer.bottom)
    return kept, needed


def _is_softmax(layers: list, blob: str) -> bool:
    """Whether the blob holds what a Softmax layer gave, at most in another shape."""
    maker = next((layer for layer in reversed(layers) if blob in layer.top), None)
    if maker is None:
        return False
    if maker.type == "Sigmoid":
        raise BayesCaffeError(
            f"bayescaffe needs class scores, but {blob!r} comes from the Sigmoid layer "
            f"{maker.name!r}: its classes do not exclude each other"
        )
    if maker.type in ("Flatten", "Reshape") and maker.bottom[0] != blob:
        return _is_softmax(layers, maker.bottom[0])
    return maker.type == "Softmax"


def is_random(layer) -> bool:
    """Whether a layer of a net for inference differs from draw to draw."""
    if layer.type == "Dropout":
        return layer.dropout_param.sample_weights_test
    bayes = layer.bayes_param
    return is_bayesian(layer) and bayes.sample == bayes.ALWAYS


def _legacy_inputs(net) -> list:
    """Input layers for the fields `input`, `input_shape` and `input_dim` of a net."""
    holder = type(net)()
    for number, name in enumerate(net.input):
        layer = holder.layer.add(name=name, type="Input", top=[name])
        if number < len(net.input_shape):
            layer.input_param.shape.add().CopyFrom(net.input_shape[number])
        else:
            layer.input_param.shape.add().dim.extend(net.input_dim[4 * number : 4 * number + 4])
    return list(holder.layer)


def declared_shape(source, blob: str) -> tuple[int, ...] | None:
    """The shape of an item of a blob that a data layer gives, if its options tell it."""
    if source.type in ("Input", "DummyData"):
        param = source.input_param if source.type == "Input" else source.dummy_data_param
        shapes = [tuple(shape.dim) for shape in param.shape]
        if shapes:
            return shapes[list(source.top).index(blob) if len(shapes) > 1 else 0][1:]
    if source.type == "MemoryData":
        param = source.memory_data_param
        return param.channels, param.height, param.width
    if source.type == "ImageData" and source.image_data_param.new_height:
        param = source.image_data_param
        return 3 if param.is_color else 1, param.new_height, param.new_width
    return None


def batch_size(source) -> int:
    """How many items a data layer gives at once."""
    if source.type == "Input" and source.input_param.shape:
        return max(1, source.input_param.shape[0].dim[0])
    sizes = [getattr(source, name).batch_size for name in BATCH_FIELDS if source.HasField(name)]
    return max(1, *sizes, 1)


def _unused_name(layers: list, name: str) -> str:
    taken = {blob for layer in layers for blob in (layer.name, *layer.top)}
    while name in taken:
        name += "_"
    return name
