"""Image sets. Pictures, IDX files and arrays come in; LMDBs for Caffe, or images for a net, go out.

data.from_folder("photos", "data/photos", size=64)     # your own pictures as LMDBs
data.from_arrays(X, y, "data/mine", channels="rgb")    # your own arrays
data.prepare("mnist", "data/mnist")                    # a known set, which is downloaded
data.prepare_idx("my-idx", "data/my-set")              # any set in the IDX format
images = data.open_images("photos")                    # images from any source, for a net
"""

from bayescaffe.data.building import from_arrays, from_folder
from bayescaffe.data.datasets import prepare, prepare_idx
from bayescaffe.data.image_set import Dataset
from bayescaffe.data.images import Images, open_images

__all__ = [
    "Dataset",
    "Images",
    "from_arrays",
    "from_folder",
    "open_images",
    "prepare",
    "prepare_idx",
]
