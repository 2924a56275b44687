"""The filter bank as a small linear system: phi_k(t) = C_k A^t B, computed, not fitted.

Take the first n Hankel channels, n a little above the number wanted, as the state itself: with
Phi (n x L) the column Phi(t) is the state's impulse response, and one step of time must map Phi(t) to
Phi(t+1). The channels are orthonormal and nearly closed under that shift, so the best such map,

    A = argmin |A Phi[:, :-1] - Phi[:, 1:]|,     B = Phi(0),     C = the filters' coordinates in Phi,

misses only in the last few of the n channels, and the miss falls by about a factor of ten for each one
added. Because Phi is orthonormal the least squares needs no solver: Phi[:, :-1] Phi[:, :-1]' is the
identity less the outer product of the last column. The state is then literally "the features of n
channels", C is the first rows of the identity, |A| is 1.0 to 1.1 and its spectral radius below 1 wherever
n is well below L. With n = L the map is the exact shift.
"""

from functools import lru_cache
from numbers import Real
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from .errors import shown, whole
from .filters import MAX_FILTERS, MAX_LENGTH, Filters, exact_filters

EXTRA_STATES = 24  # beyond this many channels above K, rounding grows faster than the miss shrinks


class Realization(NamedTuple):
    """x(t) = A x(t-1) + B u(t), features = C x(t); `errors[k]` is |C_k A^t B - phi_k| over the horizon."""

    A: Float64[np.ndarray, "n n"]
    B: Float64[np.ndarray, " n"]
    C: Float64[np.ndarray, "K n"]
    errors: Float64[np.ndarray, " K"]


def realize(filters: Float[np.ndarray, "K L"], tolerance: float = 1e-6) -> Realization:
    """The smallest such system whose every filter is within `tolerance` of the given one, in norm.

    The filters must lie in the span of the leading Hankel channels of their length, as
    `hankel_filters` returns them. The system stands for lags below the horizon L; what A^t B does beyond
    it means nothing. Where no state of up to K + 24 reaches the tolerance (many channels over a short
    horizon), the refusal says how close it came.
    """
    if isinstance(filters, Filters):
        raise ValueError("filters must be an array of shape (K, L), got a Filters: give its .filters")
    try:
        filters = np.asarray(filters, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"filters must be an array of shape (K, L), got {shown(filters)}") from None
    if filters.ndim != 2:
        raise ValueError(f"filters must be an array of shape (K, L), got shape {filters.shape}")
    if not np.isfinite(filters).all():
        raise ValueError(f"filters must be finite, got {np.sum(~np.isfinite(filters))} values that are not")
    if not isinstance(tolerance, Real) or not 0 < tolerance < np.inf:
        raise ValueError(f"tolerance must be a finite number above 0, got {shown(tolerance)}")
    length = whole("length of the filters", filters.shape[1], 1, MAX_LENGTH)
    count = whole("number of filters", filters.shape[0], 1, min(length, MAX_FILTERS))

    largest = min(length, count + EXTRA_STATES)
    phi = _basis(length)[:largest]
    shift = phi[:, 1:] @ phi[:, :-1].T  # nested: the leading n x n block belongs to the first n channels
    coordinates = filters @ phi.T
    best = None
    for n in range(count, largest + 1):
        a = _shift_map(shift[:n, :n], phi[:n, -1])
        found = _measured(a, phi[:n, 0].copy(), coordinates[:, :n], filters)
        if found.errors.max() <= tolerance:
            return found
        if best is None or found.errors.max() < best.errors.max():
            best = found
    assert best is not None
    raise ValueError(
        f"no state space of up to {largest} states gives {count} filters of length {length} within "
        f"tolerance {tolerance:g}: the best reached {best.errors.max():.1e} with {len(best.B)} states; "
        "use fewer filters, a looser tolerance, or the direct product with the filters"
    )


@lru_cache(maxsize=2)
def _basis(length: int) -> np.ndarray:
    """The first channels, as many as any realization may need."""
    return exact_filters(length, min(length, MAX_FILTERS + EXTRA_STATES)).filters


def _shift_map(shift: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Least-squares A, the Gram matrix I - last last' inverted in closed form (pseudo-inverse at n = L)."""
    lost = float(last @ last)
    weight = 1 / (1 - lost) if lost < 1 - 1e-12 else -1.0
    return shift + weight * np.outer(shift @ last, last)


def _measured(a: np.ndarray, b: np.ndarray, c: np.ndarray, filters: np.ndarray) -> Realization:
    response = impulse_response(a, b, filters.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        errors = np.linalg.norm(c @ response - filters, axis=1)
    return Realization(a, b, c, np.where(np.isfinite(errors), errors, np.inf))


def impulse_response(a: np.ndarray, b: np.ndarray, length: int) -> np.ndarray:
    """[B, A B, A^2 B, ...] (n, length), by doubling."""
    response, power = b[:, None], a
    with np.errstate(over="ignore", invalid="ignore"):
        while response.shape[1] < length:
            response = np.concatenate([response, power @ response], axis=1)
            power = power @ power
    return response[:, :length]
