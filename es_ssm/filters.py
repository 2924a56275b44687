"""The Hankel filter bank: the leading eigenvectors of Z, exact for every channel, ordered.

    Z_ij = integral of (1-r)^2 r^(i+j-2) dr over [0, 1] = 2 / ((i+j)^3 - (i+j)),   i, j = 1..L.

The eigenvalues fall off exponentially (1e-38 at the 64th for L = 2048), so a method that works on the
entries of Z in float64 returns noise beyond some twenty channels. Here no step loses relative accuracy:

1.  Z = E H E', where H_ij = 1/(i+j-1) is the Hilbert matrix of size L+1 and E takes differences of
    neighbouring rows. H is a Cauchy matrix, 1/(x_i + x_j) with x_i = i - 1/2, so every Schur complement
    in its pivoted Cholesky factorisation is a product of known factors: H = C C' to full relative
    accuracy, column by column, however small the column.
2.  The columns of C are inner products with an orthonormal basis f_m of functions (Muentz-Legendre),
    and rows of E C are inner products with functions that vanish at r = 1: orthogonal to the known
    vector f_m(1) = sqrt(2 x_p). Rotating that direction away (a Helmert basis, built from sums that run
    from the smallest column up, so nothing cancels) leaves Z = G G' with well-conditioned, graded G.
3.  A pivoted QR and a one-sided Jacobi SVD (LAPACK dgejsv) of such a G are accurate for every singular
    value and vector, not only for the large ones (Demmel et al., 1999).

Measured, as the distance in norm: at most 3e-14 from 300-digit arithmetic for all channels up to 64 (L up to
512); 1e-12 at L = 16384 and 6e-12 at 131072 from a quadrature of the integral, since the differences of step
1 cost rounding that grows as the square root of L. Eigenvalues: 3e-15, relative. Memory O(L), time O(L).
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float64
from scipy.linalg import lapack, qr

from .cache import cached_arrays
from .errors import choice, whole

MAX_LENGTH = 131_072
MAX_FILTERS = 64
PIVOTS = 180  # columns of the Cholesky factor; what lies beyond is below 1e-15 of channel 88 at any length
SMALLEST_PIVOT = 1e-280  # and nothing is taken from where float64 underflows

FilterMethod = Literal["exact", "subspace-float64", "subspace-float32"]
FILTER_METHODS: tuple[str, ...] = get_args(FilterMethod)


class Filters(NamedTuple):
    """`filters[k]` is the channel phi_{k+1}: unit norm, first entry positive, largest eigenvalue first."""

    filters: Float64[np.ndarray, "K L"]
    eigenvalues: Float64[np.ndarray, " K"]


def hankel_filters(length: int, n_filters: int, method: FilterMethod = "exact") -> Filters:
    """The first `n_filters` Hankel spectral channels for sequences up to `length`, and their eigenvalues.

    `method` is "exact", or the paper's subspace iteration in one of two precisions, which loses the high
    channels to rounding and is here for comparison. Results are kept in the disk cache.
    """
    length = whole("length", length, 1, MAX_LENGTH)
    n_filters = whole("n_filters", n_filters, 1, min(length, MAX_FILTERS))
    choice("method", method, FILTER_METHODS)

    def make() -> dict[str, np.ndarray]:
        if method == "exact":
            found = exact_filters(length, n_filters)
        else:
            from .subspace import subspace_filters

            found = subspace_filters(length, n_filters, np.dtype(method.removeprefix("subspace-")))
        return found._asdict()

    key: dict[str, str | int] = {
        "what": "hankel_filters",
        "length": length,
        "n_filters": n_filters,
        "method": method,
    }
    return Filters(**cached_arrays(key, make))


def exact_filters(length: int, count: int) -> Filters:
    """The first `count` channels, without checks or cache. Channel k does not depend on `count`."""
    factor = _graded_factor(length)  # (L, m)
    q, r, _ = qr(factor, mode="economic", pivoting=True, check_finite=False)
    # G = Q R P', so the left singular vectors of R are the right ones of R', whose columns are graded
    sigma, _, v, work, _, info = lapack.dgejsv(np.asfortranarray(r.T), joba=0, jobu=0, jobv=0, jobr=0, jobp=0)
    if info != 0:
        raise ArithmeticError(f"the Jacobi SVD of the filter factor failed at length {length} (info {info})")
    singular = sigma * (work[0] / work[1])
    filters = np.ascontiguousarray((q @ v[:, :count]).T)
    return Filters(_oriented(filters), singular[:count] ** 2)


def _graded_factor(length: int) -> np.ndarray:
    """G (L, m) with Z = G G', columns falling off as the singular values do. See the module's notes."""
    x = np.arange(length + 1) + 0.5
    schur = np.ones(length + 1)  # residual Schur complement: schur_i schur_j / (x_i + x_j)
    columns: list[np.ndarray] = []
    ends: list[float] = []
    while len(columns) < min(PIVOTS, length + 1):
        diagonal = schur * schur / (2 * x)
        pivot = int(np.argmax(diagonal))
        if diagonal[pivot] < SMALLEST_PIVOT:
            break
        end = np.sqrt(2 * x[pivot])  # f_m(1)
        column = schur * end / (x + x[pivot])
        columns.append(column[:-1] - column[1:])
        ends.append(end)
        schur = schur * ((x - x[pivot]) / (x + x[pivot]))

    weight = np.cumsum(np.square(ends))
    tail = np.zeros(length)  # sum over later columns of end * column
    rotated = []
    for m in range(len(columns) - 1, 0, -1):
        scale = np.sqrt(weight[m - 1] * weight[m])
        rotated.append((weight[m] / scale) * columns[m] + (ends[m] / scale) * tail)
        tail += ends[m] * columns[m]
    return np.stack(rotated[::-1], axis=1)


def _oriented(filters: np.ndarray) -> np.ndarray:
    """Signs such that every first entry is positive.

    Z is strictly totally positive, so channel k changes sign exactly k times (k from 0) and its two ends
    are not zero: a positive first entry means a last entry of sign (-1)^k. One of the ends can be far
    smaller than rounding (1e-24 at L = 32, k = 31); the larger one decides. A first entry below rounding
    keeps its size and gets the sign it truly has.
    """
    alternating = (-1.0) ** np.arange(len(filters))
    first, last = filters[:, 0], filters[:, -1] * alternating
    filters = filters * np.sign(np.where(np.abs(first) > np.abs(last), first, last))[:, None]
    filters[:, 0] = np.maximum(np.abs(filters[:, 0]), np.finfo(np.float64).tiny)
    return filters
