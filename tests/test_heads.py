"""The four heads: shapes, padding, refusals."""

import pytest
import torch
from models import HEADS, LENGTH, config, inputs, make

from es_ssm import DecisionModel, PairClassifier, SequenceClassifier, Trajectories


def test_shapes():
    shapes = [tuple(make(kind)(inputs(kind)).shape) for kind in HEADS]
    assert shapes == [(2, LENGTH, 258), (2, 5), (2, 5), (2, LENGTH // 3, 2)]


@pytest.mark.parametrize("kind", HEADS)
def test_every_budget_gives_finite_gradients(kind):
    model = make(kind).train()
    for budget in model.budgets:
        model.zero_grad()
        model(inputs(kind), budget).square().mean().backward()
        grads = {name: p.grad for name, p in model.named_parameters()}
        assert all(grad is not None and torch.isfinite(grad).all() for grad in grads.values())
        assert torch.all(grads["backbone.blocks.1.spectral.projections"][budget:] == 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_class(side):
    model, x = make(SequenceClassifier), inputs(length=30)
    padding = torch.zeros(2, 13, dtype=torch.long)
    padded = torch.cat([padding, x] if side == "left" else [x, padding], dim=1)
    torch.testing.assert_close(model(padded, 6, padded != 0), model(x, 6), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(padded, 6), model(x, 6), rtol=1e-3)


def test_padding_changes_no_pair_and_sides_may_differ_in_length():
    model, x = make(PairClassifier), inputs(PairClassifier, length=30)
    padded = torch.cat([x, torch.zeros(2, 2, 9, dtype=torch.long)], dim=2)
    torch.testing.assert_close(model(padded, mask=padded != 0), model(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(x), model(x.flip(1)))  # the order of a pair can matter


def test_padding_changes_no_action():
    model, x = make(DecisionModel), inputs(DecisionModel, length=30)
    padded = Trajectories(
        *[
            torch.cat(
                [
                    torch.randn(2, 4, *p.shape[2:]).to(p.dtype)
                    if p.dtype.is_floating_point
                    else torch.zeros(2, 4, dtype=p.dtype),
                    p,
                ],
                dim=1,
            )
            for p in x
        ]
    )
    mask = torch.ones(2, 14, dtype=torch.bool)
    mask[:, :4] = False
    torch.testing.assert_close(model(padded, 6, mask)[:, 4:], model(x, 6), rtol=1e-4, atol=1e-5)


def test_padding_changes_no_next_token():
    model, x = make(), inputs(length=30)
    padded = torch.cat([torch.zeros(2, 7, dtype=torch.long), x], dim=1)
    torch.testing.assert_close(model(padded, 6, padded != 0)[:, 7:], model(x, 6), rtol=1e-4, atol=1e-5)


def test_an_action_depends_on_no_later_state_and_not_on_itself():
    model, x = make(DecisionModel), inputs(DecisionModel)
    before = model(x)
    later = x._replace(states=x.states.clone(), actions=x.actions.clone(), returns=x.returns.clone())
    later.states[:, 6:] += 1
    later.returns[:, 6:] += 1
    later.actions[:, 5:] += 1  # the action of step 5 comes after its state
    assert torch.equal(model(later)[:, :6], before[:, :6])
    assert before.abs().max() <= 1


def test_vectors_instead_of_tokens():
    model = make(SequenceClassifier, input_dim=40)
    assert model(torch.randn(3, 20, 40), 4).shape == (3, 5)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (SequenceClassifier, "n_classes"),
        (PairClassifier, "n_classes"),
        (DecisionModel, "state_dim"),
        (DecisionModel, "action_dim"),
    ],
)
def test_a_head_says_what_its_configuration_lacks(kind, field):
    with pytest.raises(ValueError, match=f"{kind.__name__} needs {field} in its ModelConfig, which has None"):
        kind(config(**{field: None}))


@pytest.mark.usefixtures("as_users_run")
def test_tokens_that_are_none_are_refused():
    model = make()
    with pytest.raises(ValueError, match="largest token must be a whole number from 0 to 257, got 258"):
        model(torch.tensor([[1, 258]]))
    with pytest.raises(ValueError, match="smallest token must be a whole number from 0 to 257, got -1"):
        model(torch.tensor([[1, -1]]))
    with pytest.raises(ValueError, match=r"tokens must be integers, got torch\.float32"):
        model(torch.ones(1, 4))
