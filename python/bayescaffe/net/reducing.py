"""Making layers of a net smaller, as the paper did with a layer that was unsure of its signs.

Only `num_output` changes, in the text of the prototxt: comments, order and layout stay. Layers
further on take their input size from what comes in, so they need no edit; where that is not so (a
sum with a layer of the old size, groups that no longer divide the channels, …) the change is
refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.net.inference_net import TEST, TRAIN, layers_of_phase
from bayescaffe.net.layer_kinds import data_tops, means, stock_type
from bayescaffe.net.messages import LayerBlobs, parse_message
from bayescaffe.net.prototext import update

# A layer is unsure of its signs if fewer of its weights than this are expected to have the sign of
# their mean. Its tau is then above 0.608: between the 0.758 for which the paper halved a layer and
# the 0.567 of the halved layer, which it kept.
SIGN_CERTAINTY = 0.95

SIZE_FIELDS = {
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "InnerProduct": "inner_product_param",
}
# Layers that work alike for any number of channels, and give as many as they take.
_PASSING = {
    *("AbsVal", "BatchNorm", "Bias", "BNLL", "Clip", "Dropout", "Eltwise", "ELU", "Exp", "Flatten"),
    *("Log", "LRN", "MVN", "Pooling", "Power", "PReLU", "ReLU", "Scale", "Sigmoid", "Softmax"),
    *("Split", "Swish", "TanH", "Threshold"),
}


@dataclass(frozen=True)
class Advice:
    """A layer that is unsure of its signs, and what could be done."""

    layer: str
    sign_certainty: float
    outputs: int
    proposed: int | None
    """Half of the outputs; None where that is not possible."""
    obstacle: str | None
    """Why it is not possible."""


def advice(text: str, layers: Sequence, source: str = "the net") -> list[Advice]:
    """The layers that are unsure of their signs, without the output layer; the least sure first.

    Args:
        text: the net's prototxt.
        layers: what `inspect` says of it.
        source: what obstacles call the net.
    """
    unsure = [
        layer
        for layer in layers
        if layer.sign_certainty < SIGN_CERTAINTY and layer.outputs and not layer.is_output
    ]
    found = []
    for layer in sorted(unsure, key=lambda layer: layer.sign_certainty):
        proposed, obstacle = layer.outputs // 2, None
        try:
            reduce_net(text, {layer.name: proposed}, source)
        except BayesCaffeError as error:
            proposed, obstacle = None, str(error)
        found.append(Advice(layer.name, layer.sign_certainty, layer.outputs, proposed, obstacle))
    return found


def reduce_net(text: str, sizes: Mapping[str, int], source: str = "the net") -> str:
    """The text of a prototxt with smaller layers.

    Args:
        sizes: the new num_output of each layer to change, by its name.
        source: what errors call the net.
    """
    before = parse_message(text, "NetParameter", source)
    after = parse_message(text, "NetParameter", source)
    outputs = output_layers(before)
    for name, size in sizes.items():
        named = [layer for layer in after.layer if layer.name == name]
        if not named or not all(map(size_field, named)):
            known = dict.fromkeys(layer.name for layer in after.layer if size_field(layer))
            known = ", ".join(name for name in known if name not in outputs)
            raise BayesCaffeError(
                f"{source}: no layer {name!r} with a num_output; there are {known}"
            )
        if name in outputs:
            raise BayesCaffeError(
                f"{source}: layer {name!r} gives the net's answer; its num_output is that of the "
                "task and cannot be reduced"
            )
        for layer in named:
            param = getattr(layer, size_field(layer))
            if not 1 <= size < param.num_output:
                raise BayesCaffeError(
                    f"{source}: layer {name!r} cannot be reduced to {size}; its num_output is "
                    f"{param.num_output}, and the new one must be smaller, and at least 1"
                )
            param.num_output = size
    for phase in (TRAIN, TEST):
        _scales(layers_of_phase(before, phase), layers_of_phase(after, phase), source)
    return update(text, before, after, source)


def count_parameters(
    text: str, reduced: str, weights: Sequence[LayerBlobs], source: str = "the net"
) -> tuple[int, int]:
    """The number of weights and biases of a net, and that of its reduced form.

    Args:
        weights: the trained weights of the net before, which know the sizes of its inputs.
    """
    before, after = (
        layers_of_phase(parse_message(net, "NetParameter", source), TRAIN)
        for net in (text, reduced)
    )
    scales = _scales(before, after, source)
    totals = [0, 0]
    for layer in weights:
        if layer.name not in scales:
            continue
        inputs, outputs = scales[layer.name]
        for i, blob in enumerate(means(layer)):
            scale = outputs * inputs if i == 0 and size_field(layer) else outputs
            totals[0] += blob.size
            totals[1] += int(blob.size * scale) if blob.size > 1 else blob.size
    return totals[0], totals[1]


def size_field(layer) -> str | None:
    """The field of a layer that holds its num_output, None for layers that choose no size."""
    return SIZE_FIELDS.get(stock_type(layer))


def output_layers(net) -> set[str]:
    """The layers that give the net's answer: no other layer with a size is between them and an end.

    An end is a blob that no layer takes: a loss, an accuracy, or the scores themselves.
    """
    found = set()
    for phase in (TRAIN, TEST):
        origins: dict[str, set[str]] = {}  # which layers with a size each blob comes from
        ends = set()
        for layer in layers_of_phase(net, phase):
            sources = set().union(*(origins.get(bottom, ()) for bottom in layer.bottom))
            ends.difference_update(layer.bottom)
            for top in data_tops(layer):
                origins[top] = {layer.name} if size_field(layer) else sources
                ends.add(top)
        found.update(*(origins[end] for end in ends))
    return found


@dataclass(frozen=True)
class _Width:
    """The channels of a blob: how many there were, where that is known, and how that changes."""

    channels: int | None = None
    scale: Fraction = Fraction(1)


def _scales(before: Sequence, after: Sequence, source: str) -> dict[str, tuple[Fraction, Fraction]]:
    """By what factors the inputs and outputs of each layer change; refuses what cannot work."""
    widths: dict[str, _Width] = {}
    scales, owners = {}, {}
    for old, new in zip(before, after, strict=True):
        bottoms = [widths.get(bottom, _Width()) for bottom in new.bottom]
        refusal = f"{source}: layer {new.name!r} ({new.type}) would not work: "
        width = _width(old, new, bottoms, refusal)
        inputs = bottoms[0].scale if bottoms else Fraction(1)
        scales[new.name] = inputs, width.scale
        widths.update((top, width) for top in data_tops(new))
        for i, param in enumerate(new.param):
            if param.name:
                change = (inputs if i == 0 and size_field(new) else 1, width.scale)
                owner, expected = owners.setdefault(param.name, (new.name, change))
                if change != expected:
                    raise BayesCaffeError(
                        f"{refusal}it shares the parameter {param.name!r} with {owner!r}, and "
                        "their sizes would differ"
                    )
    return scales


def _width(old, new, bottoms: Sequence[_Width], refusal: str) -> _Width:
    """The channels that one layer gives."""
    changed = any(bottom.scale != 1 for bottom in bottoms)
    kind = stock_type(new)
    if field := size_field(new):
        was, param = getattr(old, field).num_output, getattr(new, field)
        if not was:
            raise BayesCaffeError(f"{refusal}it has no num_output")
        if changed and param.axis != 1:
            raise BayesCaffeError(f"{refusal}its axis is {param.axis}, and not that of channels")
        if kind != "InnerProduct" and param.group > 1:
            _check_groups(param, bottoms, refusal)
        return _Width(was, Fraction(param.num_output, was))
    if kind == "Concat" and new.concat_param.axis == new.concat_param.concat_dim == 1:
        if all(bottom.channels for bottom in bottoms):
            channels = sum(bottom.channels for bottom in bottoms)
            left = sum(bottom.channels * bottom.scale for bottom in bottoms)
            return _Width(channels, Fraction(left, channels))
        if changed:
            raise BayesCaffeError(f"{refusal}it joins blobs whose channels the net does not tell")
    if kind not in _PASSING:
        if changed:
            raise BayesCaffeError(f"{refusal}its input would have fewer channels")
        return _Width()
    if len({bottom.scale for bottom in bottoms}) > 1:
        names = ", ".join(map(repr, new.bottom))
        raise BayesCaffeError(f"{refusal}the channels of its inputs {names} would differ")
    return _Width(None, bottoms[0].scale) if kind == "Flatten" else bottoms[0]


def _check_groups(param, bottoms: Sequence[_Width], refusal: str) -> None:
    sizes = {"num_output": param.num_output}
    for bottom in bottoms:
        if bottom.scale != 1:
            if bottom.channels is None:
                raise BayesCaffeError(f"{refusal}its input's channels are not known, for its group")
            sizes["input"] = int(bottom.channels * bottom.scale)
    for what, size in sizes.items():
        if size % param.group:
            raise BayesCaffeError(
                f"{refusal}its group {param.group} does not divide its {what} {size}"
            )
