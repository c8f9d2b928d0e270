"""Net.sample: Monte Carlo inference in one call."""

import numpy as np


def sample(
    net,
    draws,
    inputs=None,
    images=None,
    output=None,
    keep=(),
    out=None,
    progress=None,
    draw_memory=0,
):
    """Take images through many draws of the net.

    draws     how many (draws 0, 1, 2 ...), or their indices; draw k is the same network always
    inputs    an array of images, or one for each input of the net by name. In place of an array, a
              function of (first, count) that returns the images first to first + count: it is
              asked for some megabytes at a time, in order. Without inputs the net's data layers
              give the images, from where they are
    images    how many images; with arrays as inputs, all of them
    output    the blob wanted; without it the net's only output
    keep      names of blobs that do not depend on the draw, such as labels, to return as well
    out       an array to write to (np.memmap, say), float32, draws x images x the output's shape
    progress  called with the share of the work that is done, from 0 to 1
    draw_memory  up to so many bytes of drawn weights are kept for the next call, which then need
              not draw them again. They give the same bits, and are dropped when a parameter of
              the posterior changes, and by a call with another number. Not on a GPU

    Returns the array of draws x images x outputs; with keep, a pair of it and a dict of arrays.
    Layers that do not depend on the draw run once for each image; the threads take a draw each.
    """
    draws = list(range(draws) if np.ndim(draws) == 0 else draws)
    if not draws:
        raise ValueError("draws: at least one is needed")
    for draw in draws:
        if draw != int(draw) or draw < 0:
            raise ValueError(f"draws: {draw!r} is not an index, 0 or greater")
    if output is None:
        if len(net.outputs) != 1:
            raise ValueError(f"output: name one blob, such as {', '.join(net.outputs)}")
        output = net.outputs[0]
    if draw_memory != int(draw_memory) or draw_memory < 0:
        raise ValueError(f"draw_memory: {draw_memory!r} is not a number of bytes, 0 or greater")
    keep = [keep] if isinstance(keep, str) else list(keep)
    for name in (output, *keep):
        if name not in net.blobs:
            raise ValueError(f"the net has no blob '{name}'; it has {', '.join(net.blobs)}")
        if not net.blobs[name].data.shape:
            raise ValueError(f"the blob '{name}' is one number, not one item for each image")

    # To what the shapes of its inputs say; forward does it too.
    net.reshape()
    arrays = _input_arrays(net, inputs)
    counts = {len(array) for array in arrays.values() if not callable(array)}
    if images is not None:
        counts.add(int(images))
    if len(counts) != 1:
        raise ValueError(
            "images: say how many, as no array of inputs tells"
            if not counts
            else f"inputs and images must be of one number, not {sorted(counts)}"
        )
    (images,) = counts
    if images < 1:
        raise ValueError(f"images: {images}, but must be 1 or more")

    def item_shape(name):
        return net.blobs[name].data.shape[1:]

    shape = (len(draws), images, *item_shape(output))
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out: is {out.dtype} {out.shape}, but must be contiguous float32 {shape}")
    kept = {name: np.empty((images, *item_shape(name)), np.float32) for name in keep}
    indices = [int(draw) for draw in draws]
    net._sample(output, indices, images, arrays, kept, out, progress, int(draw_memory))
    return (out, kept) if keep else out


def _input_arrays(net, inputs):
    if inputs is None:
        if net.inputs:
            raise ValueError(f"inputs: the net wants {', '.join(net.inputs)}")
        return {}
    if not isinstance(inputs, dict):
        if len(net.inputs) != 1:
            raise ValueError(
                f"inputs: one array, but the net has {len(net.inputs)} inputs; give them by name"
            )
        inputs = {net.inputs[0]: inputs}
    if set(inputs) != set(net.inputs):
        raise ValueError(f"inputs: {sorted(inputs)}, but the net has {sorted(net.inputs)}")
    arrays = {}
    for name, array in inputs.items():
        if callable(array):
            arrays[name] = _checked_source(net, name, array)
        else:
            arrays[name] = _checked(net, name, array)
    return arrays


def _checked(net, name, array):
    array = np.ascontiguousarray(array, np.float32)
    expected = net.blobs[name].data.shape[1:]
    if array.shape[1:] != expected:
        raise ValueError(
            f"inputs: '{name}' has items of shape {array.shape[1:]}, but the net takes {expected}"
        )
    return array


def _checked_source(net, name, source):
    def read(first, count):
        array = _checked(net, name, source(first, count))
        if len(array) != count:
            raise ValueError(f"inputs: '{name}' gave {len(array)} items, not {count}")
        return array

    return read
