"""A hash of images on disk, by which draws know the images that they were made of."""

import hashlib
import os

from bayescaffe.common.files import sha256
from bayescaffe.data.image_files import ImageFiles
from bayescaffe.data.interface import Images
from bayescaffe.data.lmdb import LmdbImages, data_file


def images_sha256(images: Images) -> str | None:
    """The SHA-256 of the files that hold the images; None for images that have no path.

    Of an LMDB and of an array, it is that of their one file. Of image files, it is the hash of
    lines with the hash of each file and its name.
    """
    if images.path is None:
        return None
    if not isinstance(images, ImageFiles):
        return sha256(data_file(images.path) if isinstance(images, LmdbImages) else images.path)
    digest = hashlib.sha256()
    for name, file in zip(images.names, images.files, strict=True):
        digest.update(f"{sha256(file)} ".encode() + os.fsencode(name) + b"\n")
    return digest.hexdigest()
