"""Refusals are one sentence with the argument's name, its value and what was expected."""

import json.decoder

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from es_ssm.errors import MissingExtra, choice, instance, nearest, optional, shown, tensor, whole


@given(low=st.integers(-100, 100), span=st.integers(0, 100), data=st.data())
def test_whole_numbers_within_the_bounds_pass(low, span, data):
    value = data.draw(st.integers(low, low + span))
    assert whole("n", value, low, low + span) == value


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)])
def test_integers_of_numpy_and_torch_become_plain_ints(value):
    assert type(whole("n", value, 1, 9)) is int


@given(low=st.integers(-100, 100), span=st.integers(0, 100), beyond=st.integers(1, 10**30))
def test_whole_numbers_outside_the_bounds_are_refused(low, span, beyond):
    for value in (low - beyond, low + span + beyond):
        with pytest.raises(ValueError) as refusal:
            whole("n", value, low, low + span)
        assert str(refusal.value) == f"n must be a whole number from {low} to {low + span}, got {value}"


def test_without_an_upper_bound_only_the_lower_one_counts():
    assert whole("n", 10**30, 1) == 10**30
    with pytest.raises(ValueError, match=r"^n must be a whole number of at least 1, got 0$"):
        whole("n", 0, 1)


@pytest.mark.parametrize(
    "value",
    [True, False, np.True_, 3.0, np.float64(3), "3", None, [3], 3j, float("nan"), np.array([3, 4])],
    ids=repr,
)
def test_anything_but_a_whole_number_is_refused(value):
    with pytest.raises(ValueError) as refusal:
        whole("n", value, 1, 9)
    assert str(refusal.value) == f"n must be a whole number from 1 to 9, got {value!r}"


@pytest.mark.parametrize("value", [torch.tensor(3.0), torch.tensor([3, 4])], ids=repr)
def test_tensors_that_are_not_one_integer_are_refused(value):
    with pytest.raises(ValueError, match=r"^n must be a whole number from 1 to 9, got tensor"):
        whole("n", value, 1, 9)


def test_an_instance_passes_and_anything_else_is_named():
    assert instance("n", True, bool) is True
    with pytest.raises(ValueError, match=r"^n must be of type bool, got 'no'$"):
        instance("n", "no", bool)


def test_a_long_value_is_shown_in_part_and_on_one_line():
    assert shown([1, "a  b"]) == "[1, 'a b']"
    assert shown("x" * 200) == "'" + "x" * 76 + "..."
    assert "\n" not in shown(torch.zeros(9, 9))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tensor_of_the_shape_and_type_passes(device):
    value = torch.zeros(2, 3, device=device)
    for shape in ((2, 3), ("B", 3), ("B", "L")):
        assert tensor("x", value, shape, [torch.float32]) is value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "x must be a tensor of shape (B, 3), got 3"),
        (np.zeros((2, 3)), "x must be a tensor of shape (B, 3), got array([[0., 0., 0.], [0., 0., 0.]])"),
        (torch.zeros(2, 4), "x must be of shape (B, 3) with no size 0, got (2, 4)"),
        (torch.zeros(0, 3), "x must be of shape (B, 3) with no size 0, got (0, 3)"),
        (torch.zeros(3), "x must be of shape (B, 3) with no size 0, got (3,)"),
        (torch.zeros(2, 3).half(), "x must be of type torch.int64 or torch.float32, got torch.float16"),
    ],
)
def test_another_tensor_is_refused(value, message):
    with pytest.raises(ValueError) as refusal:
        tensor("x", value, ("B", 3), [torch.int64, torch.float32])
    assert str(refusal.value) == message


def test_a_choice_among_the_options_passes():
    assert choice("colour", "red", ("red", "green")) == "red"


def test_the_refusal_of_a_choice_lists_the_options_and_names_the_nearest():
    with pytest.raises(ValueError) as refusal:
        choice("colour", "grene", ("red", "green"))
    assert str(refusal.value) == "colour must be one of red, green, got 'grene' (did you mean green?)"


@pytest.mark.parametrize("value", ["Red", "", None, 1, ["red"]], ids=repr)
def test_a_choice_must_match_exactly(value):
    with pytest.raises(ValueError, match=r"^colour must be one of red, green, got "):
        choice("colour", value, ("red", "green"))


def test_options_may_be_any_iterable_even_one_that_can_be_read_once():
    with pytest.raises(ValueError, match=r"one of red, green, got 'rad' \(did you mean red\?\)$"):
        choice("colour", "rad", iter(("red", "green")))


def test_nothing_is_suggested_where_nothing_is_near():
    assert nearest("zzz", ("red", "green")) == ""


def test_an_optional_module_that_is_there_is_imported():
    assert optional("json.decoder", "plot") is json.decoder


def test_an_optional_module_that_is_missing_is_named_with_the_command_that_brings_it():
    with pytest.raises(MissingExtra) as refusal:
        optional("no_such_package.part", "plot")
    assert str(refusal.value) == "no_such_package is not installed: pip install 'es-ssm[plot]' brings it"
