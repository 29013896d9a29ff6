"""Philox4x32-10 in NumPy, as cuRAND's device functions count it."""

import numpy as np

_LOW = np.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Four words of each counter (four arrays of 32-bit words) and key (two)."""
    c = [np.asarray(x, np.uint64) & _LOW for x in counter]
    k = [np.asarray(x, np.uint64) & _LOW for x in key]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ k[0],
            b & _LOW,
            (a >> np.uint64(32)) ^ c[3] ^ k[1],
            a & _LOW,
        ]
        k = [(k[0] + np.uint64(0x9E3779B9)) & _LOW, (k[1] + np.uint64(0xBB67AE85)) & _LOW]
    return c


class Curand:
    """One thread's curandStatePhilox4_32_10_t: its words one by one, in the order of curand()."""

    def __init__(self, seed, seq=0, off=0):
        self.seed, self.seq = seed % 2**64, seq % 2**64
        self.at = off % 2**64
        self.spare = {}

    def word(self):
        block, lane = divmod(self.at, 4)
        self.at += 1
        counter = (block % 2**32, block >> 32, self.seq % 2**32, self.seq >> 32)
        return int(philox(counter, (self.seed % 2**32, self.seed >> 32))[lane])

    def uniform(self, bit=32):
        x = self.word()
        if bit == 64:
            return (x + 1) * 2.0**-32
        return np.float32(np.float32(x) * np.float32(2.0**-32) + np.float32(2.0**-33))

    def normal(self, bit=32):
        """In float64, whatever `bit` is."""
        if bit in self.spare:
            return self.spare.pop(bit)
        words = [self.word() for _ in range(bit // 16)]
        if bit == 32:
            u, v = ((np.float64(x) + 0.5) * 2.0**-32 for x in words)
            u = np.float64(np.float32(u))
        else:
            u, v = ((words[n] ^ (words[n + 1] << 21)) * 2.0**-53 + 2.0**-54 for n in (0, 2))
        length = np.sqrt(-2 * np.log(u))
        self.spare[bit] = length * np.cos(2 * np.pi * v)
        return length * np.sin(2 * np.pi * v)
