"""Exports: a folder a budget, all checked before the first is written."""

import pytest
import torch
from models import inputs, make

from es_ssm import export, load
from es_ssm.export import budget_name, parse_budget


def test_every_budget_gets_a_folder(tmp_path):
    model, x = make(), inputs()
    paths = export(model, tmp_path / "out", [*model.budgets, (3, 12, 5)])
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
        export(make(), tmp_path / "out", [2, 99])
    assert not (tmp_path / "out").exists()


def test_an_existing_export_is_kept(tmp_path):
    export(make(), tmp_path, [4])
    before = (tmp_path / "budget-4" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="budget-4 exists already"):
        export(make(seed=1), tmp_path, [2, 4])
    assert not (tmp_path / "budget-2").exists()
    assert (tmp_path / "budget-4" / "model.safetensors").read_bytes() == before


@pytest.mark.usefixtures("as_users_run")
def test_a_repeated_budget_is_written_once(tmp_path):
    paths = export(make(), tmp_path, [4, (3, 12, 5), 4, [3, 12, 5]])
    assert [p.name for p in paths] == ["budget-4", "budget-3-12-5"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["budget-3-12-5", "budget-4"]


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(NotADirectoryError, match=r"out/budget-4 cannot be made: .*out is not a folder$"):
        export(make(), tmp_path / "out", [4])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "budget-4").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="budget-4 exists already"):
        export(make(), tmp_path / "other", [4])


@pytest.mark.usefixtures("as_users_run")
def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match=r"^budgets must be a list of budgets, got 4$"):
        export(make(), tmp_path, 4)
    with pytest.raises(ValueError, match=r"^budgets must be a list of budgets, got '4'$"):
        export(make(), tmp_path, "4")
    with pytest.raises(ValueError, match=r"^budget must be a whole number from 1 to 12, got '4'$"):
        export(make(), tmp_path, ["4"])
    with pytest.raises(ValueError, match=r"^model must be of type ElasticModel, got Linear"):
        export(torch.nn.Linear(2, 2), tmp_path, [4])
    assert list(tmp_path.iterdir()) == []


def test_budgets_as_text():
    assert parse_budget("8") == 8
    assert parse_budget("3,3,4") == (3, 3, 4)
    assert budget_name((3, 3, 4)) == "budget-3-3-4"
    for bad in ("", "x", "3,", "1.5"):
        with pytest.raises(ValueError, match="budget must be a whole number, or one a layer"):
            parse_budget(bad)
