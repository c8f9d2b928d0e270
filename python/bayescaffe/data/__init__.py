"""Image sets. Pictures, IDX files and arrays come in; LMDBs for Caffe, or images for a net, go out.

`prepare` gets a known set and `prepare_idx` takes IDX files; both write LMDBs. `open_images` reads
images from any source.
"""

from bayescaffe.data.datasets import Dataset, prepare, prepare_idx
from bayescaffe.data.images import open_images

__all__ = ["Dataset", "open_images", "prepare", "prepare_idx"]
