"""The base spectral form reproduces a symmetric linear system, within the paper's bounds (appendix B)."""

import itertools

import numpy as np
import pytest
import torch

from es_ssm import hankel_filters
from es_ssm.bank import FilterBank
from es_ssm.gates import UniformGate
from es_ssm.layer import SpectralLayer

LENGTH = 256
BUDGETS = (1, 2, 4, 8, 12, 16, 24, 32)


def bound(eigenvalues, budget):
    """|mu - its projection| <= (6 * sum of the eigenvalues left out)^(1/4)."""
    return (6 * eigenvalues[budget:].sum()) ** 0.25


def test_geometric_sequences_are_reproduced_within_the_bound():
    filters, eigenvalues = hankel_filters(LENGTH, 64)
    for rate in (0.0, 0.3, 0.9, 0.99, 0.999, 1.0):
        mu = (1 - rate) * rate ** np.arange(LENGTH)
        errors = [np.linalg.norm(mu - filters[:k].T @ (filters[:k] @ mu)) for k in BUDGETS]
        assert all(error <= bound(eigenvalues, k) for error, k in zip(errors, BUDGETS, strict=True))
        assert all(later <= earlier for earlier, later in itertools.pairwise(errors))


@pytest.mark.parametrize("gap", [0.5, 0.1, 0.01])
def test_a_symmetric_system_is_reproduced_as_budgets_grow(gap):
    """Layer with M_k = sum over modes of <nu, phi_k> W against the recursion x <- A x + B u, y = C x."""
    rng = np.random.default_rng(0)
    states, d = 10, 3
    rates = rng.uniform(0, 1 - gap, states)
    rates[0] = 1 - gap
    turn, _ = np.linalg.qr(rng.standard_normal((states, states)))
    a = turn @ np.diag(rates) @ turn.T
    b, c = rng.standard_normal((states, d)), rng.standard_normal((d, states))
    u = rng.standard_normal((LENGTH, d))
    x, expected = np.zeros(states), []
    for value in u:
        x = a @ x + b @ value
        expected.append(c @ x)
    expected = torch.tensor(np.array(expected))

    filters, eigenvalues = hankel_filters(LENGTH, 64)
    modes = np.einsum("on,ni->noi", c @ turn, turn.T @ b)
    traces = rates[:, None] ** np.arange(LENGTH)
    layer = SpectralLayer(d, 32, FilterBank(LENGTH), UniformGate(d, 32)).double()
    with torch.no_grad():
        matrices = np.einsum("nk,noi->oki", traces @ filters[:32].T, modes)
        layer.projections.copy_(torch.tensor(matrices))

    gain = sum(np.linalg.norm(mode, 2) for mode in modes) * np.linalg.norm(u)
    errors = []
    for budget in BUDGETS:
        found = layer(torch.tensor(u)[None], budget)[0] * budget**0.5  # the base form has no 1/sqrt(K)
        errors.append((found - expected).norm().item())
        # |G * u| <= sum of |G(t)| |u|, and the sum over L lags is at most sqrt(L) times the norm
        assert errors[-1] <= gain * np.sqrt(LENGTH) * bound(eigenvalues, budget) / gap
    assert errors[-1] < 1e-5 * expected.norm()
    assert errors[3] < errors[1] < errors[0]
