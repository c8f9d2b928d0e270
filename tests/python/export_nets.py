"""Nets to export, with random weights, and the programs that read what was exported."""

import numpy as np
from bayescaffe import Model
from bayescaffe.net.inference_net import inference_net
from bayescaffe.net.messages import parse_message, read_message
from conftest import REPO, make_net
from google.protobuf import text_format

UPSTREAM = REPO / "build/caffe-src"
FILES = {
    "lenet": (REPO / "models/lenet/bayes-dropout/train_test.prototxt", (1, 28, 28)),
    "cifar10_quick": (UPSTREAM / "examples/cifar10/cifar10_quick_train_test.prototxt", (3, 32, 32)),
}
NORMALISED = """
layer {{ name: "{0}_bn" type: "BatchNorm" bottom: "{0}" top: "{0}" }}
layer {{ name: "{0}_scale" type: "Scale" bottom: "{0}" top: "{0}"
         scale_param {{ bias_term: true }} }}
"""


def convolution(name, bottom, outputs, kernel, stride=1):
    return f"""
    layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
      convolution_param {{ num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2}
                           stride: {stride} bias_term: false }} }}""" + NORMALISED.format(name)


def resnet():
    """Two blocks, the second with a projection, as in the ResNets for Caffe."""
    relu = 'layer {{ name: "{0}_relu" type: "ReLU" bottom: "{0}" top: "{0}" }}'.format
    add = 'layer {{ name: "{0}" type: "Eltwise" bottom: "{1}" bottom: "{2}" top: "{0}" }}'.format
    return "".join(
        [
            'layer { name: "data" type: "Input" top: "data"',
            " input_param { shape { dim: 2 dim: 3 dim: 33 dim: 33 } } }",
            *(convolution("conv1", "data", 8, 7, 2), relu("conv1")),
            'layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"',
            " pooling_param { kernel_size: 3 stride: 2 } }",
            *(convolution("a1", "pool1", 8, 3), relu("a1"), convolution("a2", "a1", 8, 3)),
            *(add("a", "pool1", "a2"), relu("a")),
            *(convolution("b1", "a", 16, 3, 2), relu("b1"), convolution("b2", "b1", 16, 3)),
            *(convolution("b0", "a", 16, 1, 2), add("b", "b0", "b2"), relu("b")),
            'layer { name: "pool" type: "Pooling" bottom: "b" top: "pool"',
            " pooling_param { pool: AVE global_pooling: true } }",
            'layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc"',
            " inner_product_param { num_output: 7 } }",
            'layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }',
        ]
    )


NETS = (*FILES, "resnet")


def model_of(folder, name) -> Model:
    """A net with random weights; all its convolutions and inner products become Bayesian."""
    if name == "resnet":
        message, shape = parse_message(resnet(), "NetParameter"), (3, 33, 33)
    else:
        message, shape = read_message(FILES[name][0], "NetParameter"), FILES[name][1]
    inference = inference_net(message)
    inference.set_shape(shape)
    message = inference.net
    message.layer[0].input_param.shape[0].dim[0] = 2
    for layer in message.layer:
        if layer.type in ("Convolution", "InnerProduct"):
            layer.type = f"Bayes{layer.type}"
            layer.bayes_param.dataset_size = 1000
            layer.ClearField("param")
    return saved(folder, text_format.MessageToString(message))


def saved(folder, text, **options) -> Model:
    """The model of a net with random weights."""
    net = make_net(folder, text)
    randomize(net)
    net.save(str(folder / "net.caffemodel"))
    return Model(folder / "net.prototxt", folder / "net.caffemodel", **options)


def without_noise(model, folder) -> Model:
    """The same net and weights, but no layer is random."""
    message = type(model.message)()
    message.CopyFrom(model.message)
    for layer in message.layer:
        if layer.type.startswith("Bayes"):
            layer.bayes_param.sample = layer.bayes_param.NEVER
        if layer.type == "Dropout":
            layer.dropout_param.sample_weights_test = False
    (folder / "quiet.prototxt").write_text(text_format.MessageToString(message))
    return Model(folder / "quiet.prototxt", model.weights)


def randomize(net) -> None:
    """Weights with which the size of the activations stays about the same."""
    random = np.random.default_rng(3)
    kinds = dict(zip(net._layer_names, (layer.type for layer in net.layers), strict=True))
    for name, params in net.params.items():
        means = len(params) // 3 if kinds[name].startswith("Bayes") else len(params)
        for i, blob in enumerate(params):
            shape = blob.data.shape
            if kinds[name] == "BatchNorm":
                # Caffe divides both sums by the third blob.
                blob.data[...] = 2.0 if i == 2 else random.uniform(1, 3, shape)
            elif i < means:
                deviation = 0.1 if len(shape) == 1 else np.sqrt(2 / np.prod(shape[1:]))
                offset = 1 if kinds[name].endswith("Scale") and i == 0 else 0
                blob.data[...] = offset + deviation * random.standard_normal(shape)
            elif i < 2 * means:
                blob.data[...] = -1.5  # tau = 0.2
                if blob.count > 1:
                    blob.data[...] += 0.5 * random.standard_normal(shape)


def images_of(model, count=2) -> np.ndarray:
    """What enters the net."""
    shape = (count, *model.input_shape)
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


def run_opencv(stem, images) -> np.ndarray:
    """What OpenCV's reader of Caffe's files makes of STEM.prototxt and STEM.caffemodel."""
    import cv2

    net = cv2.dnn.readNetFromCaffe(f"{stem}.prototxt", f"{stem}.caffemodel")
    net.setInput(images)
    return net.forward()


def run_opencv_onnx(path, images) -> np.ndarray:
    import cv2

    net = cv2.dnn.readNetFromONNX(str(path))
    net.setInput(images)
    return net.forward()


def run_pycaffe(stem, images) -> np.ndarray:
    import caffe

    net = caffe.Net(f"{stem}.prototxt", caffe.TEST, weights=f"{stem}.caffemodel")
    net.blobs[net.inputs[0]].reshape(*images.shape)
    return net.forward(**{net.inputs[0]: images})[net.outputs[0]]


def onnx_session(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_onnxruntime(path, images) -> np.ndarray:
    session = onnx_session(path)
    (result,) = session.run(None, {session.get_inputs()[0].name: images})
    return result


def run_reference(path, images) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))
    (result,) = evaluator.run(None, {evaluator.input_names[0]: images})
    return result


def assert_close(found, expected) -> None:
    """They differ by at most 1e-4 of the largest number."""
    found = np.asarray(found).reshape(expected.shape)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
