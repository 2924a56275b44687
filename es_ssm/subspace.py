"""The paper's own filter construction (appendix C.6), kept for comparison with the exact one.

Subspace iteration on Z with products by FFT. It works on Z itself, so channels whose eigenvalue lies
below rounding of the largest come out as noise: from about k = 25 in float64 and k = 12 in float32 at
L = 2048. An experiment can ask what those noise channels cost a model.
"""

import numpy as np
import scipy.fft

from .filters import Filters

OVERSAMPLING = 16
ITERATIONS = 60
TOLERANCE = 1e-6


def subspace_filters(length: int, n_filters: int, dtype: np.dtype, seed: int = 0) -> Filters:
    """The leading eigenpairs of Z: subspace iteration with Rayleigh-Ritz steps, every product in `dtype`."""
    q_index = np.arange(2, 2 * length + 1, dtype=np.float64)
    generator = np.zeros(2 * length, dtype)
    generator[: 2 * length - 1] = 2 / (q_index**3 - q_index)  # h_2 .. h_2L
    transform = scipy.fft.rfft(generator)

    def z_times(block: np.ndarray) -> np.ndarray:
        """Z @ block: a Hankel product is a convolution with the block reversed in time."""
        spectrum = scipy.fft.rfft(block[::-1], n=2 * length, axis=0)
        product = scipy.fft.irfft(spectrum * transform[:, None], n=2 * length, axis=0)
        return np.asarray(product[length - 1 : 2 * length - 1], dtype)

    columns = min(n_filters + OVERSAMPLING, length)
    start = np.random.default_rng(seed).standard_normal((length, columns))
    basis, _ = np.linalg.qr(start.astype(dtype))
    values = np.zeros(columns, dtype)
    for iteration in range(1, ITERATIONS + 1):
        basis, _ = np.linalg.qr(z_times(basis))
        if iteration % (ITERATIONS // 4) == 0:
            small = basis.T @ z_times(basis)
            values, rotation = np.linalg.eigh((small + small.T) / 2)
            values, rotation = values[::-1], rotation[:, ::-1]
            basis = basis @ rotation
            residual = np.linalg.norm(z_times(basis) - basis * values, axis=0)[:n_filters]
            if np.all(residual < TOLERANCE * np.abs(values[:n_filters])):
                break
    filters = basis[:, :n_filters].T.astype(np.float64)
    filters *= np.where(filters[:, :1] < 0, -1.0, 1.0)
    return Filters(np.ascontiguousarray(filters), values[:n_filters].astype(np.float64))
