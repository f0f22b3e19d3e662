"""A checksum of the bytes of an array, at about the speed at which memory is read."""

from __future__ import annotations

import numpy as np

from . import jit

# Four numbers are mixed side by side, since each step waits for the product of the one before it.
LANES = 4
# The odd prime of the hash FNV-1a in 64 bits.
PRIME = np.uint64(0x100000001B3)
START = np.uint64(0xCBF29CE484222325)
FOLD = np.uint64(29)


@jit
def checksum_of_words(words, seed):
    """Return a checksum of a vector of uint64, which starts from another one;  (r,).

    Each step h -> (h ^ word) PRIME, followed by h ^ (h >> 29), can be undone, so that another word
    anywhere always gives another checksum. It is no protection against forgery.
    """
    a = (START ^ seed) * PRIME
    b, c, d = a ^ np.uint64(1), a ^ np.uint64(2), a ^ np.uint64(3)
    whole = words.size - words.size % LANES
    for i in range(0, whole, LANES):
        a = (a ^ words[i]) * PRIME
        b = (b ^ words[i + 1]) * PRIME
        c = (c ^ words[i + 2]) * PRIME
        d = (d ^ words[i + 3]) * PRIME
        a ^= a >> FOLD
        b ^= b >> FOLD
        c ^= c >> FOLD
        d ^= d >> FOLD
    for i in range(whole, words.size):
        a = (a ^ words[i]) * PRIME
        a ^= a >> FOLD
    for lane in (b, c, d, np.uint64(words.size)):
        a = (a ^ lane) * PRIME
        a ^= a >> FOLD
    return a


def checksum(array: np.ndarray, before: int = 0) -> int:
    """Return a checksum of the bytes of an array, which follows the checksum `before`.

    It has 63 bits.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    cut = flat.size - flat.size % 8
    found = checksum_of_words(flat[:cut].view(np.uint64), np.uint64(before))
    if cut < flat.size:
        rest = np.zeros(8, np.uint8)
        rest[: flat.size - cut] = flat[cut:]
        found = checksum_of_words(rest.view(np.uint64), np.uint64(found))
    return int(found) >> 1
