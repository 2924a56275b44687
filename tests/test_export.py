"""Exports: a folder a budget, all checked before the first is written."""

import pytest
import torch
from models import inputs, make

from es_ssm import export, load
from es_ssm.export import budget_name, parse_budget


def test_every_budget_gets_a_folder(tmp_path):
    model, x = make(), inputs()
    paths = list(export(model, tmp_path / "out", [*model.budgets, (3, 12, 5)]))
    assert [p.name for p in paths] == [f"budget-{k}" for k in model.budgets] + ["budget-3-12-5"]
    sizes = [(p / "model.safetensors").stat().st_size for p in paths[: len(model.budgets)]]
    assert sizes == sorted(sizes)
    for path, budget in zip(paths, [*model.budgets, (3, 12, 5)], strict=True):
        assert torch.equal(load(path)(x), model(x, budget))


def test_an_export_can_be_exported_again(tmp_path):
    model, x = make(), inputs()
    (first,) = export(model, tmp_path / "first", [(8, 12, 6)])
    (second,) = export(load(first), tmp_path / "second", [4])
    assert torch.equal(load(second)(x), model(x, 4))


def test_a_bad_budget_stops_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="budget must be a whole number from 1 to 12, got 99"):
        list(export(make(), tmp_path / "out", [2, 99]))
    assert not (tmp_path / "out").exists()


def test_an_existing_export_is_kept(tmp_path):
    list(export(make(), tmp_path, [4]))
    before = (tmp_path / "budget-4" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="budget-4 exists already"):
        list(export(make(seed=1), tmp_path, [2, 4]))
    assert not (tmp_path / "budget-2").exists()
    assert (tmp_path / "budget-4" / "model.safetensors").read_bytes() == before


def test_budgets_as_text():
    assert parse_budget("8") == 8
    assert parse_budget("3,3,4") == (3, 3, 4)
    assert budget_name((3, 3, 4)) == "budget-3-3-4"
    for bad in ("", "x", "3,", "1.5"):
        with pytest.raises(ValueError, match="budget must be a whole number, or one a layer"):
            parse_budget(bad)
