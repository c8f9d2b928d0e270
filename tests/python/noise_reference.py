"""Named noise in plain NumPy: what caffe/bayes/noise.hpp promises, written a second time.

Single precision, the same operations in the same order, so the numbers are equal to the last bit.
"""

import numpy as np

F = np.float32


def key(seed: int, layer: str, blob: int) -> tuple[int, int]:
    """FNV-1a over seed, blob and the layer's name, as two words."""
    value = 0xCBF29CE484222325
    data = seed.to_bytes(4, "little") + blob.to_bytes(4, "little") + layer.encode()
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value % 2**32, value >> 32


def philox(key_words: tuple[int, int], draw: int, blocks: int) -> np.ndarray:
    """Philox4x32-10 of blocks 0, 1, ...: an array of blocks x 4 words."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    index = np.arange(blocks, dtype=np.uint64)
    c = [index & low, index >> shift]
    c += [np.full(blocks, word, np.uint64) for word in (draw % 2**32, draw >> 32)]
    k = [np.uint64(word) for word in key_words]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> shift) ^ c[1] ^ k[0], p1 & low, (p0 >> shift) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, axis=1).astype(np.uint32)


def horner(z: np.ndarray, *coefficients: float) -> np.ndarray:
    total = F(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * z + F(coefficient)
    return total


def log_of_unit(u: np.ndarray) -> np.ndarray:
    bits = u.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> 23
    mantissa = (bits - exponent * np.int32(2**23)).view(F)
    s = (mantissa - F(1)) / (mantissa + F(1))
    series = horner(s * s, F(2) / F(9), F(2) / F(7), F(2) / F(5), F(2) / F(3), 2)
    return exponent.astype(F) * F(0.693147181) + s * series


def normal(key_words: tuple[int, int], draw: int, count: int) -> np.ndarray:
    """The first `count` numbers of a draw."""
    words = philox(key_words, draw, -(-count // 4)).reshape(-1, 2)
    radius_word, angle_word = words[:, 0], words[:, 1]
    u = (radius_word >> 1).astype(np.int32).astype(F) * F(2**-31) + F(2**-32)
    radius = np.sqrt(F(-2) * log_of_unit(u))
    angle = (angle_word << np.uint32(2)).view(np.int32).astype(F) * F(3.65723694e-10)
    z = angle * angle
    one = F(1)
    sine = horner(z, one / F(362880), -one / F(5040), one / F(120), -one / F(6), 1) * angle
    cosine = horner(z, one / F(40320), -one / F(720), one / F(24), F(-0.5), 1)
    quadrant = angle_word >> 30
    odd = quadrant & 1 == 1
    radius = np.where(quadrant & 2 == 2, -radius, radius)
    pairs = radius * np.where(odd, -sine, cosine), radius * np.where(odd, cosine, sine)
    return np.stack(pairs, axis=1).ravel()[:count]
