"""The four heads: shapes, padding, refusals."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import HEADS, LENGTH, config, inputs, make

from es_ssm import DecisionModel, LanguageModel, PairClassifier, SequenceClassifier, Trajectories
from es_ssm.heads import mean_pool


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
        assert torch.all(grads["backbone.blocks.1.spectral.projections"][:, budget:] == 0)


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


def test_a_mean_is_over_real_positions_whatever_the_others_hold():
    x, mask = torch.randn(3, 9, 4), torch.arange(9) < torch.tensor([[9], [4], [0]])
    for poison in (torch.nan, torch.inf, 1e30):
        found = mean_pool(x.masked_fill(~mask[..., None], poison), mask)
        torch.testing.assert_close(found[0], x[0].mean(0))
        torch.testing.assert_close(found[1], x[1, :4].mean(0))
        assert torch.all(found[2] == 0)
    assert mean_pool(x.bfloat16(), mask).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", [LanguageModel, DecisionModel])
def test_a_head_refuses_what_it_would_ignore(kind):
    with pytest.raises(ValueError, match=f"^{kind.__name__} has no use for input_dim, .* got 5$"):
        kind(config(input_dim=5))


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("kind", HEADS)
def test_a_configuration_of_another_kind_is_refused(kind):
    with pytest.raises(ValueError, match=r"^config must be of type ModelConfig, got \{\}$"):
        kind({})


TOKENS, REAL = torch.full((2, 20), 3), torch.ones(2, 20, dtype=torch.bool)
WRONG_INPUTS = [
    (LanguageModel, [[2, 3]], None, r"tokens must be a tensor of shape \(B, L\), got \[\[2, 3\]\]"),
    (LanguageModel, TOKENS[0], None, r"tokens must be of shape \(B, L\) with no size 0, got \(20,\)"),
    (LanguageModel, TOKENS[None], None, r"tokens must be of shape \(B, L\) .* got \(1, 2, 20\)"),
    (LanguageModel, TOKENS[:0], None, r"tokens must be of shape \(B, L\) with no size 0, got \(0, 20\)"),
    (LanguageModel, TOKENS[:, :0], None, r"tokens must be of shape \(B, L\) with no size 0, got \(2, 0\)"),
    (
        LanguageModel,
        TOKENS.byte(),
        None,
        "tokens must be of type torch.int64 or torch.int32, got torch.uint8",
    ),
    (LanguageModel, TOKENS.bool(), None, "tokens must be of type .* got torch.bool"),
    (LanguageModel, TOKENS.float(), None, "tokens must be of type .* got torch.float32"),
    (LanguageModel, TOKENS, REAL.float(), "mask must be of type torch.bool, got torch.float32"),
    (LanguageModel, TOKENS, REAL[:, :1], r"mask must be of shape \(2, 20\) .* got \(2, 1\)"),
    (LanguageModel, TOKENS, REAL[:1], r"mask must be of shape \(2, 20\) .* got \(1, 20\)"),
    (LanguageModel, TOKENS, [True], r"mask must be a tensor of shape \(2, 20\), got \[True\]"),
    (SequenceClassifier, TOKENS[0], None, r"tokens must be of shape \(B, L\)"),
    (SequenceClassifier, TOKENS, REAL[:, :19], r"mask must be of shape \(2, 20\)"),
    (PairClassifier, TOKENS, None, r"tokens must be of shape \(B, 2, L\)"),
    (PairClassifier, torch.full((2, 3, 20), 3), None, r"\(B, 2, L\) .* got \(2, 3, 20\)"),
    (PairClassifier, TOKENS[None], REAL, r"mask must be of shape \(1, 2, 20\) .* got \(2, 20\)"),
]


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(("kind", "x", "mask", "message"), WRONG_INPUTS)
def test_wrong_inputs_are_refused_in_one_sentence(kind, x, mask, message):
    with pytest.raises(ValueError, match=message):
        make(kind)(x, 4, mask)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, 20, 6), r"vectors must be of shape \(B, L, 5\) with no size 0, got \(2, 20, 6\)"),
        (torch.randn(20, 5), r"vectors must be of shape \(B, L, 5\) .* got \(20, 5\)"),
        (
            torch.ones(2, 20, 5, dtype=torch.long),
            "vectors must be of type torch.float32 or .* got torch.int64",
        ),
    ],
)
def test_wrong_vectors_are_refused(x, message):
    with pytest.raises(ValueError, match=message):
        make(SequenceClassifier, input_dim=5)(x)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": torch.full((2, 16), 1000)}, "largest time must be a whole number from 0 to 999, got 1000"),
        (
            {"times": torch.arange(-1, 15).expand(2, 16)},
            "smallest time must be a whole number from 0 to 999, got -1",
        ),
        ({"times": torch.ones(2, 16)}, "times must be of type torch.int64 or torch.int32"),
        ({"states": torch.randn(2, 15, 7)}, r"states must be of shape \(2, 16, 7\) .* got \(2, 15, 7\)"),
        ({"states": torch.randn(2, 16, 8)}, r"states must be of shape \(2, 16, 7\) .* got \(2, 16, 8\)"),
        ({"actions": torch.randn(2, 16, 1)}, r"actions must be of shape \(2, 16, 2\)"),
        ({"returns": torch.randn(2, 16)}, r"returns must be of shape \(2, 16, 1\)"),
    ],
)
def test_wrong_trajectories_are_refused(changes, message):
    model, x = make(DecisionModel), inputs(DecisionModel)
    with pytest.raises(ValueError, match=message):
        model(x._replace(**changes))
    with pytest.raises(ValueError, match="inputs must be of type Trajectories, got tensor"):
        model(x.states)
    with pytest.raises(ValueError, match=r"mask must be of shape \(2, 16\)"):
        model(x, mask=torch.ones(2, 48, dtype=torch.bool))


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_runs_on_the_meta_device(kind):
    x = inputs(kind)
    on_meta = Trajectories(*[part.to("meta") for part in x]) if kind is DecisionModel else x.to("meta")
    assert make(kind).to("meta")(on_meta, 3).shape == make(kind)(x, 3).shape


@pytest.mark.slow
def test_every_head_compiles_whole():
    script = Path(__file__).with_name("compiled_heads.py")
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500, check=False)
    assert found.stdout == "equal\n", found.stderr
