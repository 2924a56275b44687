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


def test_bits_are_equal_at_every_length(tmp_path):
    """Whatever the kernels: that of one row differs from that of many, and some from aligned to not."""
    model = make(d_model=128, n_layers=2)
    for budget in (4, (3, 7)):
        small = truncate(model, budget)
        again = load(save(small, tmp_path / str(budget)))
        for length in (1, 2, 3, 5, 17, 33):
            for batch in (1, 2, 3):
                x = inputs(batch=batch, length=length)
                found = model(x, budget=budget)
                assert torch.equal(found, small(x))
                assert torch.equal(found, again(x))


def test_loaded_parameters_lie_as_new_ones_do(saved):
    assert all(p.data_ptr() % 64 == 0 for p in load(saved).parameters())


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


def test_loading_onto_a_device(saved):
    assert all(p.is_meta for p in load(saved, device="meta").parameters())
    with pytest.raises(ValueError, match="device must be one that torch can use here, got 'foo': "):
        load(saved, device="foo")


class OwnModel(es_ssm.LanguageModel):
    pass


def mixed():
    model = make()
    model.backbone.norm.double()
    return model


def wider():
    model = make()
    model.more = torch.nn.Linear(2, 2)
    return model


def with_a_hole():
    model = make()
    with torch.no_grad():
        model.backbone.norm.weight[2] = torch.nan
    return model


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (with_a_hole, "this LanguageModel: backbone.norm.weight holds values that are not finite numbers"),
        (mixed, "backbone.norm.weight is torch.float64 but .* torch.float32, expected one"),
        (wider, "this LanguageModel has an unknown tensor more.bias"),
        (lambda: make(OwnModel), "model must be one of LanguageModel, .* to be saved, got a class OwnModel"),
        (lambda: make().to("meta"), "model has no values to save: this LanguageModel is on the meta device"),
        (lambda: torch.nn.Linear(2, 2), "model must be of type ElasticModel, got Linear"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(model, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save(model(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


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


def nested_without_end(folder):
    (folder / CONFIG_FILE).write_text("[" * 100_000)


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
        r"backbone.norm.weight is torch.int32, expected torch.float32 or torch.bfloat16 or ",
    ),
    "eight bits": (
        change_tensors(lambda t: t.update({k: v.to(torch.float8_e4m3fn) for k, v in t.items()})),
        "is torch.float8_e4m3fn, expected torch.float32 or torch.bfloat16 or ",
    ),
    "two precisions": (
        change_tensors(lambda t: t.update({"backbone.norm.weight": torch.zeros(16).double()})),
        "backbone.norm.weight is torch.float64 but .* torch.float32, expected one",
    ),
    "no weights": (lambda f: (f / WEIGHTS_FILE).unlink(), "has no model.safetensors"),
    "no config": (lambda f: (f / CONFIG_FILE).unlink(), "is not a saved model: it has no config.json"),
    "not JSON": (lambda f: (f / CONFIG_FILE).write_text("{"), "is not readable JSON"),
    "not text": (lambda f: (f / CONFIG_FILE).write_bytes(b"\xff\xfe\x00"), "is not readable JSON"),
    "not a mapping": (lambda f: (f / CONFIG_FILE).write_text("[1]"), "does not describe an es-ssm model"),
    "foreign JSON": (change_config(format="llama"), "does not describe an es-ssm model"),
    "newer": (change_config(format_version=2), "has format_version 2, newer than the 1 that is known here"),
    "newer by far": (change_config(format_version=10**9), "has format_version 1000000000, newer than the 1"),
    **{
        f"version {version!r}": (
            change_config(format_version=version),
            f"format_version must be the whole number 1, got {version!r}",
        )
        for version in ("1", "2", 1.0, 2.0, True, 0, -1, None)
    },
    "nested without end": (nested_without_end, "is not readable JSON: maximum recursion depth exceeded"),
    "config no mapping": (change_config(config=[]), "config: input should be a valid dictionary"),
    "header key self": (change_config(self=1), "Header has no 'self'"),
    "model key self": (change_model(self=1), "ModelConfig has no 'self'"),
    "unknown key": (change_config(extra=1), "Header has no 'extra'"),
    "missing key": (lambda f: rewrite(f, lambda v: v.pop("model")), "Header needs model"),
    "unknown model": (change_config(model="LanguageModle"), r"did you mean LanguageModel\?"),
    "unknown model key": (change_model(n_heads=4), "ModelConfig has no 'n_heads'"),
    "missing model key": (
        lambda f: rewrite(f, lambda v: v["config"].pop("d_model")),
        "config needs d_model",
    ),
    "missing keys that have defaults": (
        lambda f: rewrite(f, lambda v: [v["config"].pop(key) for key in ("budgets", "dropout")]),
        "config needs budgets, dropout",
    ),
    "text for a number": (change_model(dropout="0.1"), "dropout: input should be a valid number, got '0.1'"),
    "text for a size": (
        change_model(d_model="16"),
        "d_model must be a whole number from 2 to 65536, got '16'",
    ),
    "vast width": (change_model(d_model=10**20), "d_model must be a whole number from 2 to 65536, got 1000"),
    "vast depth": (
        change_model(n_layers=10**7),
        "n_layers must be a whole number from 1 to 1024, got 10000000",
    ),
    "vast vocabulary": (change_model(vocab_size=2**24), r"embedding.weight has shape \(258, 16\), expected"),
    "bad model value": (change_model(d_model=-3), "d_model must be a whole number from 2 to 65536, got -3"),
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
