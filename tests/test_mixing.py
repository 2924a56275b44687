"""The fast mixing agrees with the definition and its plain twin: values, gradients, precisions."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ssm.bank import FilterBank
from es_ssm.chunks import CPU, GPU, Tiles, by_doubling, form_for, in_chunks, one_by_one, see, start
from es_ssm.conv import features_direct
from es_ssm.mix_operator import mix
from es_ssm.mixing import mix_backward, mix_forward, mix_plain

# Relative to the float64 definition, as |found - expected| / |expected|. float32 and float64 are bounded by
# the state space (1e-6, see realize). bfloat16 and float16 round each gated feature and each output once:
# 2^-9 and 2^-12 (half a unit), so some 2e-3 and 3e-4 together; splitting adds 1e-5.
FORWARD = {torch.float64: 1e-6, torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}
# Gradients pass two roundings more (of the gradient of the features, and of the gated matrix).
GRADIENT = {torch.float64: 2e-6, torch.float32: 5e-6, torch.bfloat16: 8e-3, torch.float16: 1.5e-3}

SHAPES = [  # horizon, length, channels, width in, width out, batch
    (1, 1, 1, 1, 1, 1),
    (7, 5, 3, 4, 4, 2),
    (60, 60, 32, 6, 6, 2),
    (97, 97, 32, 5, 7, 3),
    (128, 101, 8, 8, 8, 1),
    (512, 509, 32, 4, 4, 2),
    (2048, 700, 2, 8, 3, 1),
    (2048, 2048, 20, 4, 4, 1),
]


def operands(length, budget, width, out_width, batch, spare=0):
    torch.manual_seed(0)
    u = torch.randn(batch, length, width, dtype=torch.float64)
    gates = torch.rand(batch, length, budget, dtype=torch.float64)
    projections = torch.randn(out_width, budget + spare, width, dtype=torch.float64)
    return u, gates, projections


def definition(u, gates, projections, bank):
    gated = features_direct(u, bank, gates.shape[2]) * gates[..., None]
    return torch.einsum("blkd,ekd->ble", gated, projections[:, : gates.shape[2]])


def distance(found, expected):
    return ((found.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


@pytest.mark.parametrize("path", [mix, mix_plain])
@pytest.mark.parametrize("dtype", FORWARD, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_agree_with_the_definition(shape, dtype, path):
    horizon, length, *rest = shape
    bank, exact = FilterBank(horizon), [p.requires_grad_() for p in operands(length, *rest)]
    expected = definition(*exact, bank)
    weight = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, exact, weight)

    kind = torch.float64 if dtype == torch.float64 else torch.float32
    given = [p.detach().to(kind).requires_grad_() for p in exact]
    found = path(*given, bank, dtype)
    assert found.dtype == dtype
    assert distance(found, expected) < FORWARD[dtype]
    for grad, wanted in zip(torch.autograd.grad(found, given, weight.to(dtype)), expected_grads, strict=True):
        assert grad.dtype == kind
        assert distance(grad, wanted) < GRADIENT[dtype]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_the_fast_path_equals_the_plain_one_over_random_shapes(data):
    horizon = data.draw(st.sampled_from([3, 40, 65, 130, 333, 1000]))
    length = data.draw(st.integers(1, horizon))
    budget = data.draw(st.integers(1, min(horizon, 32)))
    widths = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3)))
    given, bank = operands(length, budget, *widths, spare=2), FilterBank(horizon)
    assert distance(mix(*given, bank, torch.float64), mix_plain(*given, bank, torch.float64)) < 2e-6


@pytest.mark.parametrize(("horizon", "length", "budget"), [(9, 9, 3), (80, 70, 5)])
def test_gradcheck(horizon, length, budget):
    """Numerical derivatives in float64, over one chunk and over several."""
    bank = FilterBank(horizon)
    given = [p.requires_grad_() for p in operands(length, budget, 2, 2, 1)]
    assert torch.autograd.gradcheck(lambda *p: mix(*p, bank, torch.float64), given, fast_mode=True)


def test_removed_channels_get_exactly_zero():
    u, gates, projections = operands(200, 5, 4, 4, 2, spare=3)
    projections.requires_grad_()
    mix(u, gates, projections, FilterBank(256), torch.float64).sum().backward()
    assert torch.all(projections.grad[:, 5:] == 0)
    assert projections.grad[:, :5].abs().min() > 0


def test_a_parameter_used_twice_gets_both_gradients():
    bank, (u, gates, projections) = FilterBank(128), operands(100, 6, 4, 4, 2)
    projections.requires_grad_()
    mix(
        mix(u, gates, projections, bank, torch.float64), gates, projections, bank, torch.float64
    ).sum().backward()
    twice = projections.grad.clone()
    projections.grad = None
    definition(definition(u, gates, projections, bank), gates, projections, bank).sum().backward()
    assert distance(twice, projections.grad) < 1e-5


def test_parameters_in_bfloat16_get_good_gradients_however_many_tokens():
    """Added slab by slab in bfloat16, all of one sign, they would be wrong by 4e-2 here."""
    bank, (u, gates, projections) = FilterBank(2048), operands(2048, 4, 3, 3, 24)
    low = [p.abs().bfloat16().requires_grad_() for p in (u, gates, projections)]
    exact = [p.detach().double().requires_grad_() for p in low]
    mix(*low, bank, torch.bfloat16).sum().backward()
    definition(*exact, bank).sum().backward()
    for found, expected in zip(low, exact, strict=True):
        assert found.grad.dtype == torch.bfloat16
        assert distance(found.grad, expected.grad) < GRADIENT[torch.bfloat16]


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_one_gradient_alone_and_operands_that_are_views(wanted):
    bank, (u, gates, projections) = FilterBank(128), operands(100, 6, 4, 4, 2)
    views = [
        u.transpose(1, 2).contiguous().transpose(1, 2),
        gates[:1, :, :1].expand(2, 100, 6),  # as the simpler gates give them
        projections.transpose(0, 2).contiguous().transpose(0, 2),
    ]
    given = [p.detach().requires_grad_(w) for p, w in zip(views, wanted, strict=True)]
    exact = [p.detach().clone().requires_grad_(w) for p, w in zip(views, wanted, strict=True)]
    mix(*given, bank, torch.float64).square().sum().backward()
    definition(*exact, bank).square().sum().backward()
    for found, expected, want in zip(given, exact, wanted, strict=True):
        assert (found.grad is not None) == want
        assert not want or distance(found.grad, expected.grad) < 1e-5


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of torch.func.jvp
def test_derivatives_it_does_not_have_are_refused():
    bank, (u, gates, projections) = FilterBank(128), operands(100, 6, 4, 4, 2)
    u.requires_grad_()
    (once,) = torch.autograd.grad(
        mix(u, gates, projections, bank, torch.float64).square().sum(), u, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="no second derivative"):
        once.sum().backward()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(
            lambda x: mix(x, gates, projections, bank, torch.float64), (u.detach(),), (u.detach(),)
        )


@pytest.mark.usefixtures("as_users_run")
def test_operands_that_do_not_fit_are_refused():
    u, gates, projections = operands(100, 6, 4, 4, 2)
    for wrong in (
        (u, gates[:, :90], projections),
        (u, gates[:1], projections),
        (u, gates, projections[:, :5]),
        (u[..., :3], gates, projections),
    ):
        with pytest.raises(ValueError, match="must fit u"):
            mix(*wrong, FilterBank(128), torch.float64)


def test_the_tiles_of_a_gpu_give_the_same(monkeypatch):
    bank, given = FilterBank(2048), operands(1900, 16, 4, 4, 3)
    once, grad = mix_forward(*given, bank, torch.float64), torch.randn(3, 1900, 4, dtype=torch.float64)
    back = mix_backward(grad, *given, bank, torch.float64)
    monkeypatch.setattr("es_ssm.chunks.CPU", GPU)
    assert distance(mix_forward(*given, bank, torch.float64), once) < 2e-6
    for found, expected in zip(mix_backward(grad, *given, bank, torch.float64), back, strict=True):
        assert distance(found, expected) < 2e-6


def test_gates_of_zero_have_their_gradients_still():
    u, gates, projections = operands(100, 6, 4, 4, 2)
    gates = torch.zeros_like(gates).requires_grad_()
    mix(u, gates, projections, FilterBank(128), torch.float64).sum().backward()
    found = gates.grad.clone()
    gates.grad = None
    definition(u, gates, projections, FilterBank(128)).sum().backward()
    assert distance(found, gates.grad) < 2e-6


def test_slabs_and_groups_change_nothing(monkeypatch):
    bank, given = FilterBank(512), operands(500, 20, 4, 4, 3)
    grad = torch.randn(3, 500, 4, dtype=torch.float64)
    once = mix_forward(*given, bank, torch.float64)
    back = mix_backward(grad, *given, bank, torch.float64)
    monkeypatch.setattr(
        "es_ssm.chunks.CPU", Tiles(chunk=32, slab=70, backward_slab=100, group=3, scan=by_doubling)
    )
    assert distance(mix_forward(*given, bank, torch.float64), once) < 1e-12
    for small, large in zip(mix_backward(grad, *given, bank, torch.float64), back, strict=True):
        assert distance(small, large) < 1e-12


@pytest.mark.parametrize("count", [1, 2, 5, 16, 33])
def test_both_scans_are_the_recursion(count):
    adds, advance = (
        torch.randn(2, count, 3, 4, dtype=torch.float64),
        torch.randn(3, 3, dtype=torch.float64) / 2,
    )
    state, expected = torch.zeros(2, 3, 4, dtype=torch.float64), []
    for c in range(count):
        state = advance @ state + adds[:, c]
        expected.append(state)
    for scan in (one_by_one, by_doubling):
        torch.testing.assert_close(scan(adds.clone(), advance), torch.stack(expected, 1))


def test_the_bfloat16_features_carry_16_bits_before_their_one_rounding():
    """With each operand rounded to bfloat16 instead of split, the error would be ten times as large."""
    from es_ssm.mixing import _gated_features

    bank, (u, gates, _) = FilterBank(2048), operands(2048, 32, 16, 16, 1)
    u, gates = u.float(), gates.float()
    form = form_for(bank, 32, 2048, CPU.chunk, u)
    inputs, by_chunk = (in_chunks(x, len(form.inside)) for x in (u, gates))
    scaled = form.inside * by_chunk.flatten(0, 1)[..., None]
    seen, _ = see(inputs, start(inputs, form), form)
    room = torch.empty(2048 * 32 * 16, dtype=torch.float64)
    exact = _gated_features(scaled.double(), seen.double(), room)
    split = _gated_features(scaled, seen, room.bfloat16())
    rounded = exact.bfloat16()
    assert distance(split, exact) < 1.02 * distance(rounded, exact)
    agree = (split == rounded).double().mean()
    assert agree > 0.99


@pytest.mark.parametrize(("method", "share"), [("exact", 1 / 4), ("subspace-float32", 1 / 2)])
def test_nothing_of_the_size_of_the_features_is_ever_there(method, share):
    """The largest tensor that forward and backward make, against (B, L, K, D): the features of a group of
    channels, or without a state space their transforms back, of twice the length."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    self.numbers = max(self.numbers, tensor.numel())
            return out

    u, gates, projections = (p.float() for p in operands(2048, 32, 256, 8, 1))
    bank, watch = FilterBank(2048, method), Largest()
    mix_forward(u, gates, projections, bank, torch.bfloat16)  # the bank's own tensors are made here
    with watch:
        mix_backward(
            mix_forward(u, gates, projections, bank, torch.bfloat16),
            u,
            gates,
            projections,
            bank,
            torch.bfloat16,
        )
    assert watch.numbers <= 2048 * 32 * 256 * share


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_block_compiles_without_a_graph_break(backend):
    script = Path(__file__).with_name("compiled.py")
    found = subprocess.run([sys.executable, script, backend], capture_output=True, text=True, check=False)
    assert found.stdout == "equal\n", found.stderr


def test_the_operator_obeys_torchs_rules():
    u, gates, projections = (p.requires_grad_() for p in operands(70, 5, 3, 3, 2))
    torch.library.opcheck(torch.ops.es_ssm.mix.default, (u, gates, projections, 96, "exact", torch.float64))


def test_without_a_state_space_it_is_the_plain_path():
    bank, given = FilterBank(128), [p.requires_grad_() for p in operands(120, 64, 3, 3, 2, spare=0)]
    found, expected = mix(*given, bank, torch.float64), mix_plain(*given, bank, torch.float64)
    assert distance(found, expected) < 1e-12  # some channels at a time
    weight = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad(found, given, weight), torch.autograd.grad(expected, given, weight), strict=True
    ):
        assert distance(ours, theirs) < 1e-12


def test_checkpointing_and_autocast_give_the_same_gradients():
    from models import inputs, make
    from torch.utils.checkpoint import checkpoint

    model, x = make().train(), inputs()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for block in model.backbone.blocks:
        block.drop_path.rate = 0.0

    def grads(run):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run().float().square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = grads(lambda: model(x, 8))
    again = grads(lambda: checkpoint(model, x, 8, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
