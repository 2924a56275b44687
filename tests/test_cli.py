"""The commands as a person types them, wrong ones too."""

import subprocess
import sys

import pytest
import torch
from models import inputs, make

from es_ssm import load, save


def es_ssm(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", "from es_ssm.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
    )


@pytest.fixture
def model_folder(tmp_path):
    return save(make(), tmp_path / "model")


def test_help_imports_no_torch():
    code = "import sys; sys.argv = ['es-ssm', '--help']\ntry:\n from es_ssm.cli import main; main()\n"
    code += "except SystemExit: pass\nprint('torch' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("False False")


def test_version():
    assert es_ssm("--version").stdout == "es-ssm 0.1.0\n"


def test_recipes_are_listed():
    found = es_ssm("recipes")
    assert found.returncode == 0
    for word in ("slimpajama-1.3b", "1291.01 M", "sc10-10m", "10.66 M"):
        assert word in found.stdout


def test_export_writes_each_budget(model_folder, tmp_path):
    out = tmp_path / "out"
    found = es_ssm("export", model_folder, "--budget", "8", "--budget", "3,12,5", "--out", out)
    assert found.returncode == 0, found.stderr
    assert sorted(p.name for p in out.iterdir()) == ["budget-3-12-5", "budget-8"]
    x = inputs()
    assert torch.equal(load(out / "budget-3-12-5")(x), make()(x, (3, 12, 5)))


def test_export_all_and_again(model_folder, tmp_path):
    found = es_ssm("export", model_folder, "--all", "--out", tmp_path / "all")
    assert found.returncode == 0, found.stderr
    assert len(list((tmp_path / "all").iterdir())) == len(make().budgets)
    again = es_ssm("export", tmp_path / "all" / "budget-8", "--budget", "2", "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr


def test_the_ledger_of_a_recipe_and_of_a_checkpoint(model_folder):
    found = es_ssm("ledger", "slimpajama-1.3b")
    assert found.returncode == 0, found.stderr
    assert "1291.01 M" in found.stdout
    assert "335.05 M" in found.stdout
    found = es_ssm("ledger", model_folder)
    assert found.returncode == 0, found.stderr
    assert "channel projections" in found.stdout


WRONG = [
    (["export", "nowhere", "--all", "--out", "out"], "nowhere is not a saved model: it has no config.json"),
    (["export", "{model}", "--out", "out"], "say which budgets to export"),
    (["export", "{model}", "--all", "--budget", "2", "--out", "out"], "say which budgets to export"),
    (
        ["export", "{model}", "--budget", "13", "--out", "out"],
        "budget must be a whole number from 1 to 12, got 13",
    ),
    (["export", "{model}", "--budget", "x", "--out", "out"], "budget must be a whole number, or one a layer"),
    (["export", "{model}", "--budget", "3,3", "--out", "out"], "one for each of the 3 layers, got 2 of them"),
    (["ledger", "slimpajama"], "did you mean slimpajama-1.3b?"),
    (["ledger", "."], ". is not a saved model: it has no config.json"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_what_goes_wrong_is_one_sentence(arguments, message, model_folder, tmp_path):
    found = es_ssm(*[a.format(model=model_folder) for a in arguments], cwd=tmp_path)
    assert found.returncode == 2
    assert message in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
    assert found.stdout == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_an_unknown_command_is_refused():
    found = es_ssm("exprot")
    assert found.returncode == 2
    assert "export" in found.stderr


@pytest.mark.slow
def test_the_demo_shows_ten_exports_and_never_overwrites(tmp_path):
    for name in ("demo", "demo-2"):
        found = es_ssm("demo", "--out", "demo", cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        assert len(list((tmp_path / name / "exports").iterdir())) == 10
        assert (tmp_path / name / "budgets.png").stat().st_size > 10_000
