"""The backbone and the configuration: budgets, causality, initialisation, refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import LENGTH, config, inputs, make

from es_ssm import DecisionModel, LanguageModel, ModelConfig, Trajectories
from es_ssm.model import DropPath


def test_no_budget_means_the_full_one():
    model, x = make(), inputs()
    assert torch.equal(model(x), model(x, budget=12))
    assert torch.equal(model(x), model(x, budget=(12, 12, 12)))
    assert not torch.allclose(model(x), model(x, budget=11))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_change_never_moves_an_earlier_output_at_any_budget(data):
    model = make()
    x = inputs(length=data.draw(st.integers(2, LENGTH)))
    t = data.draw(st.integers(1, x.shape[1] - 1))
    changed = x.clone()
    changed[:, t:] = 2 + (changed[:, t:] - 1) % 256
    budget = data.draw(st.one_of(st.none(), st.integers(1, 12), st.tuples(*[st.integers(1, 12)] * 3)))
    before, after = model(x, budget), model(changed, budget)
    assert torch.equal(before[:, :t], after[:, :t])
    assert not torch.equal(before[:, t:], after[:, t:])


@pytest.mark.parametrize("budget", [1, 4, 12, (3, 12, 5)])
@pytest.mark.parametrize("kind", [LanguageModel, DecisionModel])
def test_causality_over_many_chunks_at_several_budgets(kind, budget):
    model = make(kind, max_length=201)
    x = inputs(kind, length=201)
    before = model(x, budget)
    for t in (1, 33, 60):
        if kind is LanguageModel:
            changed = x.clone()
            changed[:, t:] = 2 + (changed[:, t:] - 1) % 256
        else:
            changed = Trajectories(*[part.clone() for part in x])
            for part in changed[:3]:
                part[:, t:] += 1
        after = model(changed, budget)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


@pytest.mark.parametrize("budget", [1, 4, 12, (3, 12, 5)])
def test_a_prefix_is_read_alike_whatever_follows(budget):
    model, x = make(max_length=200).double(), inputs(length=200)
    whole = model(x, budget)
    for length in (1, 20, 64, 199):
        found = model(x[:, :length], budget)
        torch.testing.assert_close(found, whole[:, :length], rtol=1e-5, atol=1e-5)


def test_autocast_reaches_everything_but_the_features():
    model, x = make(), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x)
    assert low.dtype == torch.bfloat16
    exact = model(x)
    assert (low - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_runs_in_other_precisions(dtype):
    model, x = make(), inputs()
    exact = model(x)
    found = model.to(dtype)(x)
    assert found.dtype == dtype
    assert (found - exact).norm() < 0.1 * exact.norm()


def test_drop_path_rises_linearly_and_acts_in_training_only():
    rates = [block.drop_path.rate for block in make(n_layers=5, drop_path=0.2).backbone.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    drop, ones = DropPath(0.25), torch.ones(4000, 1, 1)
    kept = drop.train()(ones)
    torch.testing.assert_close(kept.unique(), torch.tensor([0, 4 / 3]))
    assert kept.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(drop.eval()(ones), ones)


def test_initialisation_is_the_papers():
    model = LanguageModel(config(d_model=128))
    weight = model.embedding.weight
    assert weight.shape == (258, 128)
    assert torch.all(weight[0] == 0)
    assert weight[1:].std().item() == pytest.approx(0.02, rel=0.02)
    assert weight[1:].mean().item() == pytest.approx(0, abs=1e-3)
    names = [name for name, _ in model.named_parameters()]
    assert not any("head" in name for name in names)  # tied: the embedding is the head


def test_dropout_acts_on_the_embedding_and_in_the_ffn():
    model, x = make(drop_path=0.0, dropout=0.5), inputs()
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))
    still = make(drop_path=0.0, dropout=0.0)
    assert torch.equal(still.train()(x), still.eval()(x))


def test_a_model_holds_no_filters():
    model = make()
    assert list(model.buffers()) == []
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_a_model_on_the_meta_device_takes_no_memory_and_no_filters(monkeypatch):
    monkeypatch.setattr("es_ssm.bank.hankel_filters", lambda *_: pytest.fail("filters were computed"))
    with torch.device("meta"):
        model = LanguageModel(ModelConfig(d_model=1262, n_layers=20, n_filters=32, max_length=2048))
    assert sum(p.numel() for p in model.parameters()) > 1.29e9
    assert all(p.is_meta for p in model.parameters())


def test_default_budgets_are_the_papers_as_far_as_they_fit():
    assert config(n_filters=32).budgets == (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
    assert config(n_filters=10).budgets == (2, 3, 4, 5, 6, 8, 10)
    assert config(n_filters=1).budgets == (1,)
    assert config(n_filters=(4, 7, 5)).budgets == (2, 3, 4)
    assert config(n_filters=10, budgets=None) == config(n_filters=10)


def test_all_budgets_end_with_the_full_one():
    assert config(n_filters=10).all_budgets == (2, 3, 4, 5, 6, 8, 10)
    assert config(n_filters=(4, 7, 5)).all_budgets == (2, 3, 4, (4, 7, 5))


def test_one_number_of_filters_for_all_layers_is_written_as_one():
    assert config(n_filters=(6, 6, 6)) == config(n_filters=6)


def test_truncated_configurations():
    assert config().truncated(5).n_filters == 5
    assert config().truncated(5).budgets == (2, 3, 4, 5)
    assert config().truncated(7).budgets == (2, 3, 4, 5, 6, 7)
    mixed = config().truncated((3, 12, 6))
    assert (mixed.n_filters, mixed.budgets) == ((3, 12, 6), (2, 3))
    assert mixed.truncated(3) == config().truncated(3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"d_model": 0}, "d_model must be a whole number from 2 to 65536, got 0"),
        ({"d_model": -4}, "d_model must be a whole number from 2 to 65536, got -4"),
        ({"d_model": 8.0}, "d_model must be a whole number from 2 to 65536, got 8.0"),
        ({"n_layers": 0}, "n_layers must be a whole number from 1 to 1024, got 0"),
        ({"n_layers": True}, "n_layers must be a whole number from 1 to 1024, got True"),
        ({"max_length": 0}, "max_length must be a whole number from 1 to 131072, got 0"),
        ({"max_length": 200_000}, "max_length must be a whole number from 1 to 131072, got 200000"),
        ({"n_filters": 0}, "n_filters must be a whole number from 1 to 48, got 0"),
        ({"n_filters": 49}, "n_filters must be a whole number from 1 to 48, got 49"),
        ({"n_filters": 65, "max_length": 100}, "n_filters must be a whole number from 1 to 64, got 65"),
        (
            {"n_filters": (4, 5)},
            "n_filters must be one number, or one for each of the 3 layers, got 2 of them",
        ),
        ({"n_filters": (4, 0, 5)}, "n_filters of layer 1 must be a whole number from 1 to 48, got 0"),
        ({"budgets": (2, 13)}, "each of budgets must be a whole number from 1 to 12, got 13"),
        ({"budgets": (0, 12)}, "each of budgets must be a whole number from 1 to 12, got 0"),
        ({"budgets": (4, 2, 12)}, r"budgets must ascend without repeats, got \(4, 2, 12\)"),
        ({"budgets": (2, 2, 12)}, r"budgets must ascend without repeats, got \(2, 2, 12\)"),
        ({"budgets": (2, 4)}, r"budgets must end with the full budget 12 \(n_filters\), got \(2, 4\)"),
        ({"budgets": ()}, r"budgets must be a list of whole numbers, got \(\)"),
        ({"budgets": 4}, "budgets must be a list of whole numbers, got 4"),
        ({"gate": "adaptativ"}, r"gate must be one of .*, got 'adaptativ' \(did you mean adaptive\?\)"),
        ({"filter_method": "eigh"}, "filter_method must be one of exact, .*, got 'eigh'"),
        ({"dropout": 1.0}, "dropout: input should be less than 1, got 1.0"),
        ({"dropout": float("nan")}, "dropout: input should be less than 1, got nan"),
        ({"dropout": "0.1"}, "dropout: input should be a valid number, got '0.1'"),
        ({"dropout": True}, "dropout: input should be a valid number, got True"),
        ({"d_model": 10**12}, "d_model must be a whole number from 2 to 65536, got 1000000000000"),
        ({"n_layers": 10**7}, "n_layers must be a whole number from 1 to 1024, got 10000000"),
        ({"self": 1}, "ModelConfig has no 'self'"),
        ({"drop_path": -0.1}, "drop_path: input should be greater than or equal to 0, got -0.1"),
        ({"vocab_size": 0}, "vocab_size must be a whole number from 1 to 16777216, got 0"),
        ({"n_classes": 0}, "n_classes must be a whole number from 1 to 16777216, got 0"),
        ({"n_filter": 4}, r"ModelConfig has no 'n_filter' \(did you mean n_filters\?\)"),
    ],
)
def test_a_bad_configuration_is_one_sentence(bad, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        config(**bad)


@pytest.mark.parametrize("missing", ["d_model", "n_layers", "n_filters", "max_length"])
def test_a_missing_size_is_named(missing):
    sizes = {"d_model": 8, "n_layers": 1, "n_filters": 2, "max_length": 8}
    del sizes[missing]
    with pytest.raises(ValueError, match=f"^ModelConfig needs {missing}$"):
        ModelConfig(**sizes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (0, "budget must be a whole number from 1 to 12, got 0"),
        (13, "budget must be a whole number from 1 to 12, got 13"),
        (-1, "budget must be a whole number from 1 to 12, got -1"),
        (4.0, "budget must be a whole number from 1 to 12, got 4.0"),
        ((4, 4), "budget must be one number, or one for each of the 3 layers, got 2 of them"),
        ((4, 13, 4), "budget of layer 1 must be a whole number from 1 to 12, got 13"),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_a_budget_that_is_not_the_models_is_refused(bad, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()(inputs(), bad)


def test_an_input_beyond_the_horizon_is_refused():
    with pytest.raises(ValueError, match="length of the input must be a whole number from 1 to 48, got 49"):
        make()(inputs(length=49))


def test_the_papers_own_filters_can_be_asked_for():
    noisy = make(n_filters=32, filter_method="subspace-float32", budgets=(4, 32))
    exact = make(n_filters=32, budgets=(4, 32))
    x = inputs()
    torch.testing.assert_close(noisy(x, 4), exact(x, 4), rtol=1e-2, atol=1e-2)
    assert (noisy(x) - exact(x)).norm() > 0.1 * exact(x).norm()
