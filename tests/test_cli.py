"""The commands as a person types them, wrong ones too."""

import subprocess
import sys

import pytest
import torch
from models import inputs, make

from es_ssm import LanguageModel, load, save
from es_ssm.ledger import layer_total, total
from es_ssm.recipes import recipe


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


def rows(text):
    """The lines of printed tables, as words."""
    return [line.split() for line in text.splitlines()]


def test_the_ledger_shows_a_layer_and_the_model_at_every_budget():
    found = rows(es_ssm("ledger", "slimpajama-1.3b").stdout)
    config = recipe("slimpajama-1.3b").config
    for budget in config.budgets:
        one, whole = layer_total(config, budget), total(config, LanguageModel, budget)
        (row,) = [words for words in found if words[:1] == [str(budget)]]
        assert row[1:4] == [f"{one.parameters / 1e6:.3f}", "M", f"{one.macs / 1e6:.3f}"]
        assert row[4:6] == [f"{whole.parameters / 1e6:.2f}", "M"]
        assert row[7] == f"{whole.macs / 1e6:,.2f}"


def test_the_ledger_shows_each_layer_where_they_differ(tmp_path):
    save(make().truncate((3, 12, 5)), tmp_path / "cut")
    for arguments, expected in (
        ([tmp_path / "cut"], ["2", "3", "3,12,5"]),
        (["laptop", "--budget", "3,3,4,2", "--budget", "8"], ["3,3,4,2", "8"]),
    ):
        shown = es_ssm("ledger", *arguments)
        assert shown.returncode == 0, shown.stderr
        found = rows(shown.stdout)
        start = next(i for i, words in enumerate(found) if words[:1] == ["budget"])
        assert [words[0] for words in found[start + 1 : start + 1 + len(expected)]] == expected
    layers = [words for words in found if len(words) == 4 and words[0].isdigit()]
    assert [words[:2] for words in layers] == [["0", "3"], ["1", "3"], ["2", "4"], ["3", "2"]]
    one = layer_total(recipe("laptop").config, 4)
    assert layers[2][2:] == [f"{one.parameters:,}", f"{one.macs:,.0f}"]


def test_a_repeated_budget_is_exported_once(model_folder, tmp_path):
    found = es_ssm("export", model_folder, "--budget", "4", "--budget", "4", "--out", tmp_path / "out")
    assert found.returncode == 0, found.stderr
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["budget-4"]
    assert len(found.stdout.splitlines()) == 1


def test_an_error_is_one_line_however_long(model_folder, tmp_path):
    (tmp_path / "a file").write_text("")
    far = tmp_path / ("long" * 30)
    found = es_ssm("export", model_folder, "--all", "--out", tmp_path / "a file")
    assert found.stderr.endswith(f"a file/budget-2 cannot be made: {tmp_path}/a file is not a folder\n")
    found = es_ssm("export", far, "--all", "--out", "out", cwd=tmp_path)
    assert found.stderr == f"es-ssm: {far} is not a saved model: it has no config.json\n"


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
    (["ledger", "laptop", "--budget", "33"], "budget must be a whole number from 1 to 32, got 33"),
    (["ledger", "slimpajama"], "did you mean slimpajama-1.3b?"),
    (["ledger", "."], ". is not a saved model: it has no config.json"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_what_goes_wrong_is_one_sentence(arguments, message, model_folder, tmp_path):
    found = es_ssm(*[a.format(model=model_folder) for a in arguments], cwd=tmp_path)
    assert found.returncode == 2
    assert message in found.stderr
    assert len(found.stderr.splitlines()) == 1
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
