"""Imports pycaffe beside other packages with C++ libraries of their own, in many orders.

Each of them computes. A clash of symbols is a crash, or a wrong number. Several of these libraries
contain protobuf, BLAS or OpenMP, and OpenCV contains Caffe's own messages.

    python imports.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

NET = """
input: "data" input_shape { dim: 1 dim: 1 dim: 6 dim: 6 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
USES = {
    "caffe": """
import caffe, numpy as np
caffe.set_random_seed(1)
net = caffe.Net(folder + "/net.prototxt", caffe.TEST)
net.blobs["data"].data[...] = np.linspace(0, 1, 36).reshape(1, 1, 6, 6)
found["caffe"] = net.forward()["prob"].ravel().copy()
net.save(folder + "/net.caffemodel")
""",
    "google.protobuf": """
from google.protobuf import descriptor_pb2, text_format
message = text_format.Parse('name: "x" package: "y"', descriptor_pb2.FileDescriptorProto())
assert descriptor_pb2.FileDescriptorProto.FromString(message.SerializeToString()) == message
""",
    "numpy": """
import numpy as np
a = np.random.default_rng(0).normal(size=(300, 300))
assert np.abs(a @ np.linalg.inv(a) - np.eye(300)).max() < 1e-6
""",
    "torch": """
import torch
x = torch.ones(2, 3, 16, 16, requires_grad=True)
torch.nn.functional.conv2d(x, torch.ones(4, 3, 3, 3)).sum().backward()
assert float(x.grad.max()) == 36
assert float((torch.ones(200, 200) @ torch.ones(200, 200))[0, 0]) == 200
""",
    "cv2": """
import cv2, numpy as np
assert cv2.GaussianBlur(np.ones((50, 50), np.float32), (5, 5), 0).shape == (50, 50)
""",
    "matplotlib": """
import io, matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.savefig(io.BytesIO(), format="png")
""",
}
# OpenCV reads the net that pycaffe wrote, and gives its numbers.
AFTER = """
net = cv2.dnn.readNetFromCaffe(folder + "/net.prototxt", folder + "/net.caffemodel")
net.setInput(np.linspace(0, 1, 36, dtype=np.float32).reshape(1, 1, 6, 6))
assert np.abs(net.forward().ravel() - found["caffe"]).max() < 1e-5
print(found["caffe"])
"""


def main() -> None:
    names = list(USES)
    orders = [order[i:] + order[:i] for order in (names, names[::-1]) for i in range(len(names))]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "net.prototxt").write_text(NET)
        printed = set()
        for order in orders:
            program = (
                f"folder, found = {folder!r}, {{}}\n{''.join(USES[name] for name in order)}{AFTER}"
            )
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"imports: {', '.join(order)}: exit code {done.returncode}\n{done.stderr}")
            print("imported in one process:", ", ".join(order), flush=True)
            printed.add(done.stdout)
    if len(printed) != 1:
        sys.exit(f"imports: the order changes Caffe's numbers: {printed}")


if __name__ == "__main__":
    main()
