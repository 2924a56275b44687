"""The ledger's closed forms against the paper's tables, real parameter counts and torch's FLOP counter."""

from functools import partial

import pytest
import torch
from models import HEADS, config, inputs, make
from torch.utils.flop_counter import FlopCounterMode

from es_ssm import BudgetSampler
from es_ssm.bank import FilterBank
from es_ssm.ledger import head_entries, layer_entries, layer_total, total
from es_ssm.mix_operator import mix
from es_ssm.mixing import mix_backward, mix_forward
from es_ssm.recipes import RECIPES

# Millions of parameters by the paper's tables. Its own figures are rounded, and for the ablations
# ("approximately 770 M", 765.1 by its formulas), LRA (53.5, 53.3) and D4RL (711 k, 710 k) differ from its
# formulas by up to 0.7 %.
PAPER = [
    ("slimpajama-1.3b", 32, 1291.0, 5e-4),
    ("slimpajama-1.3b", 24, 1036.0, 5e-4),
    ("slimpajama-1.3b", 16, 781.1, 5e-4),
    ("slimpajama-1.3b", 12, 653.7, 5e-4),
    ("slimpajama-1.3b", 8, 526.2, 5e-4),
    ("slimpajama-1.3b", 6, 462.5, 5e-4),
    ("slimpajama-1.3b", 5, 430.6, 5e-4),
    ("slimpajama-1.3b", 4, 398.7, 5e-4),
    ("slimpajama-1.3b", 3, 366.9, 5e-4),
    ("slimpajama-1.3b", 2, 335.0, 5e-4),
    ("cadence-287m", 32, 287.1, 5e-4),
    ("generality-335m", 32, 335, 1e-2),
    ("precision-160m", 32, 160, 1e-2),
    ("ablation-770m", 32, 764.9, 1e-2),
    ("ablation-770m", 32, 770, 1e-2),
    ("lra-50m", 32, 53.5, 1e-2),
    ("sc10-10m", 32, 10.66, 1e-2),
    ("sc10-10m", 16, 6.45, 1e-2),
    ("sc10-10m", 8, 4.35, 1e-2),
    ("sc10-10m", 2, 2.78, 1e-2),
    ("d4rl-halfcheetah", 32, 0.711, 1e-2),
    ("d4rl-halfcheetah", 16, 0.461, 1e-2),
    ("d4rl-halfcheetah", 8, 0.335, 1e-2),
    ("d4rl-halfcheetah", 4, 0.273, 1e-2),
    ("d4rl-halfcheetah", 2, 0.241, 1e-2),
]


@pytest.mark.parametrize(("name", "budget", "millions", "tolerance"), PAPER)
def test_the_papers_parameter_table(name, budget, millions, tolerance):
    found = RECIPES[name]
    counted = total(found.config, found.kind, budget).parameters
    assert counted / 1e6 == pytest.approx(millions, rel=tolerance)


def test_the_papers_figure_for_its_ablations_is_the_layers_alone():
    """764.9 M; the embedding and the last norm bring it to 765.15 M."""
    found = RECIPES["ablation-770m"]
    assert found.config.n_layers * layer_total(found.config, 32).parameters == 764_882_496
    rest = sum(entry.parameters for entry in head_entries(found.config, found.kind))
    assert total(found.config, found.kind).parameters == 764_882_496 + rest == 765_148_736


@pytest.mark.parametrize("name", RECIPES)
def test_the_ledger_counts_what_is_there_on_the_meta_device(name):
    found = RECIPES[name]
    with torch.device("meta"):
        model = found.kind(found.config)
    for budget in (found.config.n_filters, 2):
        small = model.truncate(budget)
        counted = sum(p.numel() for p in small.parameters())
        assert all(p.is_meta for p in small.parameters())
        assert total(found.config, found.kind, budget).parameters == counted


@pytest.fixture
def counted(monkeypatch):
    """Counts the flops of a call, those inside the mixing operator product by product."""

    def mix(u, gates, projections, bank, dtype):
        return mix_forward(u, gates, projections, bank, dtype)

    monkeypatch.setattr("es_ssm.layer.mix", mix)

    def count(call):
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            call()
        return counter.get_total_flops()

    return count


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("gate", ["adaptive", "channel", "uniform"])
def test_parameters_and_flops_of_every_head_and_gate(kind, gate, counted):
    length = 96  # whole chunks, so that nothing is padded, and trajectories of 32 steps
    model = make(kind, gate=gate, max_length=length)
    x = inputs(kind, batch=1, length=length)
    for budget in [*model.budgets, (3, 12, 5)]:
        tokens = length * (2 if kind.__name__ == "PairClassifier" else 1)
        found = total(model.config, kind, budget)
        assert found.parameters == sum(p.numel() for p in model.truncate(budget).parameters())
        assert 2 * tokens * found.macs == pytest.approx(counted(lambda b=budget: model(x, b)), rel=1e-9)


def test_flops_of_a_large_model_without_its_memory(counted):
    """torch's counter runs the whole network on the meta device, at a horizon of several chunks."""
    found = RECIPES["slimpajama-1.3b"]
    with torch.device("meta"):
        model = found.kind(found.config)
        tokens = torch.zeros(1, 2048, dtype=torch.long)
    macs = counted(lambda: model(tokens, 3)) / 2 / 2048
    assert total(found.config, found.kind, 3).macs == pytest.approx(macs, rel=1e-9)


@pytest.mark.parametrize(("length", "budget"), [(288, 20), (40, 8)])
def test_torchs_counter_sees_into_the_mixing_operator(length, budget):
    """The formula that stands for the operator, against its products counted one by one."""
    given = [torch.randn(2, length, 6), torch.rand(2, length, budget), torch.randn(5, budget, 6)]
    bank, grad = FilterBank(300), torch.randn(2, length, 5)
    for call, inside in (
        (partial(mix, *given, bank, torch.float32), partial(mix_forward, *given, bank, torch.float32)),
        (
            partial(torch.ops.es_ssm.mix_backward, grad, *given, 300, "exact", torch.float32),
            partial(mix_backward, grad, *given, bank, torch.float32),
        ),
    ):
        counts = []
        for run in (call, inside):
            with FlopCounterMode(display=False) as counter:
                run()
            counts.append(counter.get_total_flops())
        assert counts[0] == counts[1] > 0


def test_one_more_channel_costs_what_the_paper_says():
    c = config(d_model=32)
    per_channel = [sum(e.parameters for e in layer_entries(c, k)) for k in (4, 5)]
    assert per_channel[1] - per_channel[0] == 32 * 32 + 32 // 2 + 1
    fixed = sum(e.parameters for e in layer_entries(c, 5) if not e.scales)
    assert fixed == 32 * 16 + 16 + 8 * 32 * 32 + 5 * 32 + 4 * 32


def test_expected_compute_under_budget_dropout():
    """`BudgetSampler.expected` with the ledger's cost is the mean over the steps that it draws."""
    found = RECIPES["laptop"]
    costs = {k: total(found.config, found.kind, k).macs for k in found.config.budgets}
    sampler = BudgetSampler(found.config.budgets, full_every=8)
    expected = sampler.expected(lambda k: total(found.config, found.kind, k).macs)
    steps = 8 * 5000
    assert expected == pytest.approx(sum(costs[sampler.sample(s)[0]] for s in range(steps)) / steps, rel=0.01)
    assert costs[2] < expected < costs[32]
    always = BudgetSampler(found.config.budgets, full_every=1)
    assert always.expected(costs.__getitem__) == pytest.approx(total(found.config, found.kind).macs)


def test_a_model_is_its_layers_and_its_head():
    c = config()
    for budget in (4, (3, 12, 5)):
        whole, layers = total(c, HEADS[0], budget), [layer_total(c, k) for k in c.layer_budgets(budget)]
        head = head_entries(c, HEADS[0])
        for part in ("parameters", "macs"):
            parts = [getattr(each, part) for each in (*layers, *head)]
            assert getattr(whole, part) == pytest.approx(sum(parts))


def test_the_marginal_part_is_what_scales():
    c = config(n_filters=(4, 8, 12))
    assert total(c, HEADS[0]).budget == (4, 8, 12)
    for entry in head_entries(c, HEADS[0]):
        assert not entry.scales


def test_where_there_is_no_state_space_the_fft_is_counted():
    c = config(max_length=128, n_filters=64)
    assert not FilterBank(128).has_state_space(64)
    features = next(e.macs for e in layer_entries(c, 64) if "features" in e.part)
    assert features == pytest.approx(c.d_model * (65 * 2.5 * 8 + 64 * 3 * 129 / 128))
