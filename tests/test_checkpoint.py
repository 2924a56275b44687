"""Saved models: exact round trips, no filters, nothing overwritten, and every kind of damage named."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from models import HEADS, inputs, make
from safetensors.torch import load_file, save_file

import es_ssm
from es_ssm import load, save, truncate
from es_ssm.checkpoint import CONFIG_FILE, WEIGHTS_FILE
from es_ssm.files import new_file, new_folder, sha256


@pytest.fixture
def saved(tmp_path):
    return save(make(), tmp_path / "model")


def rewrite(folder, change):
    """Apply `change` to the config, as a careless person would."""
    path = folder / CONFIG_FILE
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def reseal(folder):
    rewrite(folder, lambda values: values.update(weights_sha256=sha256(folder / WEIGHTS_FILE)))


@pytest.mark.parametrize("kind", HEADS)
def test_model_truncation_and_export_are_bitwise_equal_at_every_budget(kind, tmp_path):
    model, x = make(kind), inputs(kind)
    for budget in [*model.budgets, 7, (3, 12, 5)]:
        small = truncate(model, budget)
        again = load(save(small, tmp_path / str(budget)))
        assert torch.equal(model(x, budget), small(x))
        assert torch.equal(small(x), again(x))
        assert again.config == small.config
        assert not again.training


def test_precision_is_kept(tmp_path):
    model = make().to(torch.bfloat16)
    again = load(save(model, tmp_path / "low"))
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    x = inputs()
    assert torch.equal(again(x), model(x))


def test_the_files_hold_parameters_once_and_nothing_else(saved):
    model = make()
    assert sorted(path.name for path in saved.iterdir()) == [CONFIG_FILE, WEIGHTS_FILE]
    tensors = load_file(saved / WEIGHTS_FILE)
    assert tensors.keys() == {name for name, _ in model.named_parameters()}
    numbers = sum(p.numel() for p in model.parameters())
    assert (saved / WEIGHTS_FILE).stat().st_size < 4 * numbers + 200 * len(tensors)


def test_a_loaded_model_trains(saved):
    model = load(saved).train()
    model(inputs()).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_nothing_is_overwritten(saved):
    before = sha256(saved / WEIGHTS_FILE)
    with pytest.raises(FileExistsError, match="exists already and nothing is overwritten"):
        save(make(seed=1), saved)
    assert sha256(saved / WEIGHTS_FILE) == before


def test_an_empty_folder_may_be_filled(tmp_path):
    save(make(), tmp_path / "empty")
    (tmp_path / "there").mkdir()
    load(save(make(), tmp_path / "there"))


def test_a_failed_write_leaves_nothing(tmp_path):
    def interrupted_folder():
        with new_folder(tmp_path / "folder") as work:
            (work / "half").write_text("x")
            raise KeyboardInterrupt

    def full_disk():
        with new_file(tmp_path / "file") as work:
            work.write_text("half")
            raise OSError("disk full")

    with pytest.raises(KeyboardInterrupt):
        interrupted_folder()
    with pytest.raises(OSError, match="disk full"):
        full_disk()
    assert list(tmp_path.iterdir()) == []


def flip_a_byte(folder):
    path = folder / WEIGHTS_FILE
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def cut_short(folder):
    path = folder / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-100])
    reseal(folder)


def another_format(folder):
    (folder / WEIGHTS_FILE).write_bytes(b"PK\x03\x04 not safetensors at all")
    reseal(folder)


def change_tensors(change):
    def damage(folder):
        tensors = load_file(folder / WEIGHTS_FILE)
        change(tensors)
        save_file(tensors, folder / WEIGHTS_FILE)
        reseal(folder)

    return damage


def not_a_number(tensors):
    tensors["backbone.norm.weight"][3] = np.nan


def change_config(**values):
    return lambda folder: rewrite(folder, lambda config: config.update(values))


def change_model(**values):
    return lambda folder: rewrite(folder, lambda config: config["config"].update(values))


DAMAGE = {
    "flipped byte": (flip_a_byte, "is damaged or not the file that was saved"),
    "cut short": (cut_short, "is not a sound safetensors file"),
    "another format": (another_format, "is not a sound safetensors file"),
    "NaN": (change_tensors(not_a_number), "backbone.norm.weight holds values that are not finite numbers"),
    "missing tensor": (
        change_tensors(lambda t: t.pop("backbone.norm.weight")),
        "lacks tensor backbone.norm.weight",
    ),
    "foreign tensor": (
        change_tensors(lambda t: t.update(extra=torch.zeros(1))),
        "has an unknown tensor extra",
    ),
    "wrong shape": (
        change_tensors(lambda t: t.update({"backbone.norm.weight": torch.zeros(4)})),
        r"backbone.norm.weight has shape \(4,\), expected \(16,\)",
    ),
    "integers": (
        change_tensors(lambda t: t.update({"backbone.norm.weight": torch.zeros(16, dtype=torch.int32)})),
        "backbone.norm.weight holds values that are not finite numbers",
    ),
    "no weights": (lambda f: (f / WEIGHTS_FILE).unlink(), "has no model.safetensors"),
    "no config": (lambda f: (f / CONFIG_FILE).unlink(), "is not a saved model: it has no config.json"),
    "not JSON": (lambda f: (f / CONFIG_FILE).write_text("{"), "is not readable JSON"),
    "not text": (lambda f: (f / CONFIG_FILE).write_bytes(b"\xff\xfe\x00"), "is not readable JSON"),
    "not a mapping": (lambda f: (f / CONFIG_FILE).write_text("[1]"), "does not describe an es-ssm model"),
    "foreign JSON": (change_config(format="llama"), "does not describe an es-ssm model"),
    "newer": (change_config(format_version=2), "has format_version 2, newer than the 1 that is known here"),
    "unknown key": (change_config(extra=1), "Header has no 'extra'"),
    "missing key": (lambda f: rewrite(f, lambda v: v.pop("model")), "Header needs model"),
    "unknown model": (change_config(model="LanguageModle"), r"did you mean LanguageModel\?"),
    "unknown model key": (change_model(n_heads=4), "ModelConfig has no 'n_heads'"),
    "missing model key": (
        lambda f: rewrite(f, lambda v: v["config"].pop("d_model")),
        "ModelConfig needs d_model",
    ),
    "bad model value": (change_model(d_model=-3), "d_model must be a whole number of at least 2, got -3"),
    "another size": (change_model(d_model=18), r"has shape .*, expected "),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_sentence_that_names_the_file(saved, kind):
    damage, message = DAMAGE[kind]
    damage(saved)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load(saved)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there():
    with pytest.raises(FileNotFoundError, match="nowhere is not a saved model"):
        load("nowhere")


def test_nothing_is_ever_unpickled():
    """No line of the package can: torch.load, pickle and their kin do not occur in it."""
    sources = [path.read_text() for path in Path(es_ssm.__file__).parent.rglob("*.py")]
    assert len(sources) > 15
    forbidden = re.compile(
        r"torch\.load\b|\bpickle\b(?!,)|allow_pickle=True|\bmarshal\b|(?<![.\w])(eval|exec)\("
    )
    code = [re.sub(r'"""[\s\S]*?"""|#.*', "", source) for source in sources]
    assert not [found for source in code for found in forbidden.findall(source)]
