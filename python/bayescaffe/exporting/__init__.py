"""Export. A `Model` comes in; files that stock Caffe's and ONNX's readers load go out."""
