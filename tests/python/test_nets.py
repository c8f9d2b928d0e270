"""Model: any classifier's prototxt becomes a net for inference, and its draws stay the same."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import save_weights, small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from bayescaffe.net.inference_net import inference_net  # noqa: E402
from bayescaffe.net.messages import read_weights  # noqa: E402
from bayescaffe.net.model import Model  # noqa: E402
from caffe.proto import caffe_pb2  # noqa: E402
from google.protobuf import text_format  # noqa: E402

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330"
DROPOUT = """layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden"
                     dropout_param { dropout_ratio: 0.5 } }"""
SOFTMAX = 'layer { name: "p" type: "Softmax" bottom: "out" top: "p" }'
HEADS = {
    "an Input layer": """layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 3 dim: 1 dim: 12 dim: 12 } } }""",
    "input and input_shape": 'input: "data" input_shape { dim: 3 dim: 1 dim: 12 dim: 12 }',
    "input and input_dim": 'input: "data" input_dim: 3 input_dim: 1 input_dim: 12 input_dim: 12 ',
    "an Input layer with labels": """layer { name: "data" type: "Input" top: "data" top: "label"
        input_param { shape { dim: 3 dim: 1 dim: 12 dim: 12 } shape { dim: 3 } } }""",
    "MemoryData": """layer { name: "data" type: "MemoryData" top: "data" top: "label"
        memory_data_param { batch_size: 3 channels: 1 height: 12 width: 12 } }""",
}


def write(folder, text, name="net.prototxt"):
    (folder / name).write_text(text)
    return folder / name


def body(text):
    """The layers of a small net from the convolution to the scores."""
    return text[text.index('layer {\n          name: "conv"') : text.index('name: "accuracy"') - 18]


def net_message(text):
    return text_format.Parse(text, caffe_pb2.NetParameter())


@pytest.fixture
def trained(tmp_path, digits):
    return save_weights(tmp_path, small_net(digits, BAYES))


@pytest.fixture
def images(digits):
    return LmdbImages(digits / "test_lmdb").read(range(45))


def test_gives_what_the_trained_net_computes(trained, images):
    model = Model(*trained, seed=3)
    assert (model.input_shape, model.image_shape) == ((1, 12, 12), (1, 12, 12))
    assert (model.classes, model.is_random) == (4, True)
    found = model.sample(images, [0, 5])

    pycaffe.set_random_seed(3)
    net = pycaffe.Net(str(trained[0]), pycaffe.TEST, weights=str(trained[1]))
    scores = net.sample([0, 5], images=45, output="out").astype(float)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert np.allclose(found, expected, atol=1e-6)
    assert not np.allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("end", ["", SOFTMAX])
def test_a_deploy_net_has_the_draws_of_the_trained_one(tmp_path, trained, images, head, end):
    deploy = write(tmp_path, HEADS[head] + body(trained[0].read_text()) + end, "deploy.prototxt")
    model = Model(deploy, trained[1], scale=1 / 256)
    assert np.array_equal(model.sample(images, 3), Model(*trained).sample(images, 3))


def test_out_progress_and_draws(trained, images):
    model = Model(*trained)
    out = np.empty((2, 45, 4), np.float32)
    shares = []
    assert model.sample(images, [7, 1], out=out, progress=shares.append) is out
    assert shares[-1] == 1
    assert np.array_equal(out[1], model.sample(images, 2)[1])
    assert np.array_equal(out[0], model.sample(images, 8)[7])
    assert np.allclose(out.sum(axis=-1), 1, atol=1e-6)


def test_a_seed_is_a_set_of_draws(trained, images):
    first = Model(*trained, seed=1).sample(images, 2)
    assert np.array_equal(first, Model(*trained, seed=1).sample(images, 2))
    assert not np.array_equal(first, Model(*trained, seed=2).sample(images, 2))


TRANSFORMS = {
    "none": "",
    "scale": "scale: 0.0039",
    "mean value": "scale: 0.0039 mean_value: 33.3",
    "crop": "scale: 0.0039 mean_value: 100 crop_size: 9",
    "mean file": 'mean_file: "{folder}/mean.binaryproto" scale: 0.1',
    "mean file and crop": 'mean_file: "{folder}/mean.binaryproto" crop_size: 7',
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_as_the_data_layer_does(tmp_path, digits, images, name):
    mean = np.random.default_rng(1).uniform(0, 255, (1, 1, 12, 12)).astype(np.float32)
    blob = caffe_pb2.BlobProto(data=mean.ravel(), shape={"dim": mean.shape})
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    transform = TRANSFORMS[name].format(folder=tmp_path)
    text = small_net(digits, BAYES, batch=45).replace("scale: 0.00390625", transform)
    net, weights = save_weights(tmp_path, text)
    model = Model(net, weights)
    caffe_net = pycaffe.Net(str(net), pycaffe.TEST)
    caffe_net.forward()
    assert np.array_equal(model.transform(images), caffe_net.blobs["data"].data)
    assert model.input_shape == caffe_net.blobs["data"].data.shape[1:]
    assert model.sample(images, 1).shape == (1, 45, 4)


def test_mean_value_for_each_channel_and_options_instead_of_the_nets(tmp_path, trained):
    model = Model(*trained, scale=2, mean=[3])
    assert model.transform(np.full((1, 1, 12, 12), 5, np.uint8)).max() == 4
    for bad in ([1, 2], np.ones((1, 3, 3))):
        with pytest.raises(BayesCaffeError, match="net.prototxt: the mean is of shape"):
            Model(*trained, mean=bad)


def test_a_net_that_is_not_random(tmp_path, digits, images):
    model = Model(*save_weights(tmp_path, small_net(digits, None)))
    assert not model.is_random
    assert np.ptp(model.sample(images, 3), axis=0).max() == 0
    assert not Model(*save_weights(tmp_path, small_net(digits, BAYES + " sample: NEVER"))).is_random


def test_mc_dropout(tmp_path, digits, images):
    net, weights = save_weights(tmp_path, small_net(digits, None, DROPOUT))
    assert not Model(net, weights).is_random
    model = Model(net, weights, mc_dropout=True)
    assert model.is_random
    assert np.ptp(model.sample(images, 3), axis=0).max() > 0.01
    other = save_weights(tmp_path, small_net(digits, None))
    with pytest.raises(BayesCaffeError, match="mc_dropout=True: the net has no Dropout layer"):
        Model(*other, mc_dropout=True)


def test_gpu_is_for_the_calls_of_the_model_only(monkeypatch, trained, images):
    said = []
    monkeypatch.setattr(pycaffe, "set_device", lambda number: said.append(number))
    monkeypatch.setattr(pycaffe, "set_mode_gpu", lambda: said.append("gpu"))
    monkeypatch.setattr(pycaffe, "set_mode_cpu", lambda: said.append("cpu"))
    Model(*trained)
    assert said == []
    model = Model(*trained, gpu=1)
    assert said == [1, "gpu", "cpu"]
    model.sample(images, 2)
    assert said == [1, "gpu", "cpu"] * 2


def test_output_names_the_scores(trained, images):
    assert Model(*trained, output="hidden").classes == 16
    assert np.array_equal(
        Model(*trained, output="out").sample(images, 1), Model(*trained).sample(images, 1)
    )
    with pytest.raises(
        BayesCaffeError,
        match="output='x': the net has no such blob in phase TEST; it has data, label, conv",
    ):
        Model(*trained, output="x")


def test_scores_with_width_and_height_of_one(tmp_path, digits, images):
    end = """layer { name: "last" type: "BayesConvolution" bottom: "conv" top: "last"
                     convolution_param { num_output: 6 kernel_size: 5 } bayes_param { %s } }"""
    text = HEADS["an Input layer"] + body(small_net(digits, BAYES)).split("layer {\n")[1].join(
        ["layer {\n", end % BAYES]
    )
    model = Model(*save_weights(tmp_path, text), scale=1 / 256)
    assert model.classes == 6
    assert model.sample(images, 2).shape == (2, 45, 6)
    with pytest.raises(BayesCaffeError, match=r"'prob' is of shape \(4, 5, 5\) for an image"):
        Model(tmp_path / "net.prototxt", tmp_path / "net.caffemodel", output="conv")


def test_only_layers_of_phase_test_that_the_scores_need_are_kept(digits):
    extra = """
        layer { name: "only" type: "ReLU" bottom: "hidden" top: "hidden" include { phase: TRAIN } }
        layer { name: "not" type: "ReLU" bottom: "hidden" top: "hidden" exclude { phase: TEST } }
        layer { name: "stage" type: "ReLU" bottom: "hidden" top: "hidden" include { stage: "s" } }
        layer { name: "silent" type: "Silence" bottom: "hidden" }
        layer { name: "ok" type: "ReLU" bottom: "hidden" top: "hidden" include { not_stage: "s" } }
        """
    made = inference_net(net_message(small_net(digits, BAYES, extra)))
    names = [layer.name for layer in made.net.layer]
    assert names == ["data", "conv", "hidden", "relu", "ok", "out", "prob"]
    assert (made.net.layer[0].type, list(made.net.layer[0].top)) == ("Input", ["data"])
    assert made.source.data_param.source.endswith("test_lmdb")


def test_a_kl_top_is_no_second_output(digits):
    text = body(small_net(digits, BAYES)).replace(
        'bottom: "hidden" top: "out"', 'bottom: "hidden" top: "out" top: "kl"'
    )
    assert inference_net(net_message(HEADS["an Input layer"] + text)).net.layer[-1].bottom == [
        "out"
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        (("SoftmaxWithLoss", "EuclideanLoss"), r"class scores.*'loss' \(EuclideanLoss\)"),
        (("SoftmaxWithLoss", "SigmoidCrossEntropyLoss"), r"not SoftmaxWithLoss: 'loss'"),
        (
            ('bottom: "data" top: "conv"', 'bottom: "nothing" top: "conv"'),
            "must have one input, the images, but 'out' depends on: none",
        ),
        (
            ('type: "ReLU" bottom: "hidden"', 'type: "Eltwise" bottom: "hidden" bottom: "label"'),
            "must have one input, the images, but 'out' depends on: 'data', 'label'",
        ),
    ],
)
def test_nets_that_do_not_classify_are_refused(digits, change, message):
    text = small_net(digits, BAYES).replace(*change)
    with pytest.raises(BayesCaffeError, match=message):
        inference_net(net_message(text))


def test_the_numbers_of_a_caffemodel_keep_their_bits(tmp_path):
    messages = pytest.importorskip("caffe.proto.caffe_pb2", reason="pycaffe is not built")
    numbers = np.array([[1.1, -0.0, np.inf], [np.nan, 1e-42, -3]], np.float32)
    net = messages.NetParameter()
    for blob in (net.layer.add(name="a").blobs.add(), net.layer.add(name="b").blobs.add()):
        blob.data.extend(numbers.ravel().tolist())
        blob.diff.extend([7, 8])
    net.layer[0].blobs[0].shape.dim.extend([2, 3])
    for name in ("num", "channels", "height"):
        setattr(net.layer[1].blobs[0], name, 1)
    net.layer[1].blobs[0].width = 6
    (tmp_path / "x.caffemodel").write_bytes(net.SerializeToString())
    (a,), (b,) = (layer.blobs for layer in read_weights(tmp_path / "x.caffemodel"))
    assert np.array_equal(a.view(np.int32), numbers.view(np.int32))
    assert np.array_equal(b.view(np.int32), numbers.reshape(1, 1, 1, 6).view(np.int32))
    a += 1  # not a view of what was read


def test_an_auxiliary_classifier_is_not_the_output(digits):
    loss = 'layer { name: "aux" type: "SoftmaxWithLoss" bottom: "hidden" bottom: "label" top: "aux"'
    text = small_net(digits, BAYES)
    assert inference_net(net_message(text + loss + " loss_weight: 0.3 }")).net.layer[-1].bottom == [
        "out"
    ]
    assert inference_net(net_message(text + loss + " loss_weight: 2 }")).net.layer[-1].bottom == [
        "hidden"
    ]
    with pytest.raises(BayesCaffeError, match="one blob of class scores, but found out, hidden"):
        inference_net(net_message(text + loss + " }"))


def test_deploy_nets_that_do_not_classify_are_refused(digits):
    text = HEADS["an Input layer"] + body(small_net(digits, BAYES))
    end = 'layer { name: "end" type: "%s" bottom: "%s" top: "end" }'
    with pytest.raises(BayesCaffeError, match="'end' comes from the Sigmoid layer 'end'"):
        inference_net(net_message(text + end % ("Sigmoid", "out")))
    with pytest.raises(BayesCaffeError, match="one blob of class scores, but found out, end; name"):
        inference_net(net_message(text + end % ("ReLU", "conv")))
    with pytest.raises(BayesCaffeError, match="one blob of class scores, but found none"):
        inference_net(net_message(""))


def test_the_shape_of_images_must_be_known(tmp_path, digits, trained, images):
    text = trained[0].read_text().replace(str(digits), "/nowhere")
    net = write(tmp_path, text, "other.prototxt")
    with pytest.raises(
        BayesCaffeError, match="other.prototxt: the size .* /nowhere/test_lmdb, is n"
    ):
        Model(net, trained[1])
    model = Model(net, trained[1], image_shape=(1, 12, 12))
    assert np.array_equal(model.sample(images, 1), Model(*trained).sample(images, 1))
    with pytest.raises(BayesCaffeError, match="takes images of 1x12x12, not 1x11x12"):
        model.sample(images[:, :, 1:], 1)


def test_wrong_passes_and_seeds_are_refused(trained, images):
    model = Model(*trained)
    for draws in (0, -1, []):
        with pytest.raises(BayesCaffeError, match="at least one draw is needed"):
            model.sample(images, draws)
    for seed in (-1, 2**32):
        with pytest.raises(BayesCaffeError, match=f"seed={seed} is not within"):
            Model(*trained, seed=seed)


def test_weights_must_be_there_and_be_numbers(tmp_path, digits, trained):
    net, weights = trained
    longer = write(tmp_path, net.read_text().replace('"hidden"', '"other"'), "longer.prototxt")
    with pytest.raises(BayesCaffeError, match="no weights for the layer 'other' of .*longer.prot"):
        Model(longer, weights)

    def spoil(net):
        net.params["hidden"][1].data[3] = np.nan

    bad = save_weights(tmp_path, small_net(digits, BAYES), spoil)
    with pytest.raises(BayesCaffeError, match="blob 1 of layer 'hidden' has nan at index 3"):
        Model(*bad)
    with pytest.raises(FileNotFoundError, match="none.caffemodel"):
        Model(net, tmp_path / "none.caffemodel")


def test_caffemodels_of_old_are_read(tmp_path, digits, images):
    net, weights = save_weights(tmp_path, small_net(digits, None))
    new = caffe_pb2.NetParameter.FromString(weights.read_bytes())
    types = caffe_pb2.V1LayerParameter.LayerType
    kinds = {"conv": types.CONVOLUTION, "hidden": types.INNER_PRODUCT, "out": types.INNER_PRODUCT}
    old = caffe_pb2.NetParameter()
    for layer in new.layer:
        if layer.name in kinds:
            old.layers.add(name=layer.name, type=kinds[layer.name], blobs=layer.blobs)
    (tmp_path / "old.caffemodel").write_bytes(old.SerializeToString())
    found = Model(net, tmp_path / "old.caffemodel").sample(images, 1)
    assert np.array_equal(found, Model(net, weights).sample(images, 1))


@pytest.mark.skipif(not hasattr(pycaffe, "Error"), reason="Caffe aborts")
def test_what_caffe_finds_wrong_is_an_error_that_names_the_file(tmp_path, trained):
    wrong = write(tmp_path, trained[0].read_text().replace("num_output: 16", "num_output: 17"))
    with pytest.raises(BayesCaffeError, match="net.prototxt with .*net.caffemodel: "):
        Model(wrong, trained[1])


def test_pycaffe_that_is_not_built_is_a_clear_error(tmp_path):
    (tmp_path / "caffe.py").write_text("raise ImportError('no _caffe.so')")
    (tmp_path / "net").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "bayescaffe", "inspect", tmp_path / "net", "net.caffemodel"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pycaffe cannot be imported (no _caffe.so); `make build` builds it" in done.stderr


def test_repr_is_two_lines(tmp_path, digits, trained):
    assert repr(Model(*trained, seed=7)) == (
        f"<Model {trained[0]} with {trained[1]}:\n  1x12x12 images, 4 classes, seed 7, random>"
    )
    assert "seed 1, not random" in repr(Model(*save_weights(tmp_path, small_net(digits, None))))


def test_images_may_come_in_parts(trained, images):
    model = Model(*trained)
    asked = []

    def read(first, count):
        asked.append((first, count))
        return images[first : first + count]

    assert np.array_equal(model.sample_parts(read, 45, 3), model.sample(images, 3))
    assert asked == [(0, 45)]
    with pytest.raises(BayesCaffeError, match="takes images of 1x12x12, not 1x12x11"):
        model.sample_parts(lambda first, count: images[:count, :, :, 1:], 45, 1)


V1 = """input: "data" input_dim: 3 input_dim: 1 input_dim: 12 input_dim: 12
layers { name: "out" type: INNER_PRODUCT bottom: "data" top: "out"
         inner_product_param { num_output: 4 } }"""
V0 = """input: "data" input_dim: 3 input_dim: 1 input_dim: 12 input_dim: 12
layers { layer { name: "out" type: "innerproduct" num_output: 4 } bottom: "data" top: "out" }"""


@pytest.mark.parametrize("text", [V1, V0])
def test_nets_of_old_formats_are_upgraded_with_a_word(tmp_path, images, caplog, capfd, text):
    caplog.set_level("INFO", "bayescaffe")
    new = """layer { name: "out" type: "InnerProduct" bottom: "data" top: "out"
                     inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }"""
    net, weights = save_weights(tmp_path, HEADS["an Input layer"] + new)
    expected = Model(net, weights).sample(images[:5], 1)
    old = write(tmp_path, text, "old.prototxt")
    capfd.readouterr()
    assert np.array_equal(Model(old, weights).sample(images[:5], 1), expected)
    assert f"{old}: upgraded from an old format" in caplog.text
    assert capfd.readouterr().err == ""  # no warning of Caffe


def test_old_weights_load_without_warnings(tmp_path, images, capfd):
    old = net_message(V1)
    random = np.random.default_rng(0)
    for shape in ((4, 144), (4,)):
        blob = old.layers[0].blobs.add(data=random.normal(size=int(np.prod(shape))))
        blob.shape.dim.extend(shape)
    (tmp_path / "old.caffemodel").write_bytes(old.SerializeToString())
    model = Model(write(tmp_path, V1), tmp_path / "old.caffemodel")
    assert model.sample(images[:5], 1).shape == (1, 5, 4)
    assert capfd.readouterr().err == ""
