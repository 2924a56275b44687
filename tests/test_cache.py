"""The disk cache: what it returns is what `make` would, whatever has happened to the files."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ssm import cache, filters
from es_ssm.cache import cache_folder, cached_arrays

KEY = {"what": "squares", "count": 3}


def squares(count: int = 3) -> dict[str, np.ndarray]:
    return {"values": np.arange(1.0, count + 1) ** 2, "table": np.arange(6, dtype=np.int32).reshape(2, 3)}


def must_not_be_called() -> dict[str, np.ndarray]:
    raise AssertionError("the entry was there, yet it is made again")


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array)
        for name, array in expected.items()
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ES_SSM_CACHE", str(tmp_path / "deep" / "folder"))
    return tmp_path / "deep" / "folder"


@pytest.fixture
def entry(folder):
    """The file of a sound entry for KEY."""
    cached_arrays(KEY, squares)
    (path,) = folder.iterdir()
    return path


def test_the_folder_is_the_one_in_the_environment(monkeypatch):
    monkeypatch.setenv("ES_SSM_CACHE", "/somewhere/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/xdg")
    assert cache_folder() == Path("/somewhere/own")


def test_the_environment_may_name_the_home_folder(monkeypatch):
    monkeypatch.setenv("ES_SSM_CACHE", "~/own")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/own")


@pytest.mark.parametrize("own", [None, ""])
def test_otherwise_it_lies_in_the_xdg_cache(monkeypatch, own):
    monkeypatch.delenv("ES_SSM_CACHE")
    if own is not None:
        monkeypatch.setenv("ES_SSM_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/xdg")
    assert cache_folder() == Path("/somewhere/xdg/es-ssm")


@pytest.mark.parametrize("xdg", [None, ""])
def test_otherwise_it_lies_at_home(monkeypatch, xdg):
    monkeypatch.delenv("ES_SSM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/es-ssm")


def test_a_second_call_reads_the_same_arrays_and_makes_nothing(entry):
    assert entry.suffix == ".safetensors"
    assert same(cached_arrays(KEY, must_not_be_called), squares())


@pytest.mark.usefixtures("entry")
def test_arrays_from_the_cache_can_be_written_to_as_new_ones_can():
    assert all(array.flags.writeable for array in cached_arrays(KEY, must_not_be_called).values())


@pytest.mark.usefixtures("entry")
def test_the_order_of_a_key_does_not_matter():
    cached_arrays(dict(reversed(KEY.items())), must_not_be_called)


@pytest.mark.usefixtures("entry")
@pytest.mark.parametrize(
    "other",
    [
        {"what": "squares", "count": 4},
        {"what": "squares", "count": "3"},
        {"what": "cubes", "count": 3},
        {"what": "squares"},
        {"what": "squares", "count": 3, "more": 0},
        {"what": "squares", "count": 3, "format": 2},
    ],
)
def test_every_part_of_a_key_counts(folder, other):
    assert same(cached_arrays(other, lambda: squares(7)), squares(7))
    assert same(cached_arrays(KEY, must_not_be_called), squares())
    assert len(list(folder.iterdir())) == 2


@pytest.mark.usefixtures("entry")
def test_another_format_version_is_another_entry(monkeypatch):
    monkeypatch.setattr(cache, "FORMAT_VERSION", cache.FORMAT_VERSION + 1)
    assert same(cached_arrays(KEY, lambda: squares(7)), squares(7))


def rebuilt_from(path: Path, content: bytes) -> None:
    """With `content` in place of the entry: a warning, the right arrays, and a sound entry afterwards."""
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=f"{path.name} is damaged .* made again"):
        assert same(cached_arrays(KEY, squares), squares())
    assert same(cached_arrays(KEY, must_not_be_called), squares())


def test_an_entry_cut_short_anywhere_is_made_again(entry):
    content = entry.read_bytes()
    for size in range(len(content)):
        rebuilt_from(entry, content[:size])


def test_an_entry_with_any_byte_changed_is_made_again(entry):
    content = bytearray(entry.read_bytes())
    for position in range(len(content)):
        rebuilt_from(entry, content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])


@pytest.mark.parametrize("dtype", [b"I64", b"U64", b"C64"])
def test_an_entry_whose_numbers_are_declared_to_be_others_is_made_again(entry, dtype):
    content = entry.read_bytes()
    assert content.count(b"F64") == 1
    rebuilt_from(entry, content.replace(b"F64", dtype))


def test_an_entry_whose_shape_is_another_is_made_again(entry):
    content = entry.read_bytes()
    assert content.count(b"[2,3]") == 1
    rebuilt_from(entry, content.replace(b"[2,3]", b"[3,2]"))


@given(content=st.binary(max_size=200))
def test_a_foreign_file_is_replaced(tmp_path_factory, content):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SSM_CACHE", str(tmp_path_factory.mktemp("foreign")))
        cached_arrays(KEY, squares)
        (path,) = cache_folder().iterdir()
        rebuilt_from(path, content)


def test_the_entry_of_another_key_under_this_name_is_not_believed(entry, folder):
    cached_arrays({**KEY, "count": 7}, lambda: squares(7))
    (other,) = set(folder.iterdir()) - {entry}
    rebuilt_from(entry, other.read_bytes())


def test_a_folder_that_cannot_be_made_costs_a_warning_not_the_result(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ES_SSM_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be written"):
        assert same(cached_arrays(KEY, squares), squares())
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_path_that_no_file_can_have_costs_a_warning_not_the_result(tmp_path, monkeypatch):
    monkeypatch.setenv("ES_SSM_CACHE", str(tmp_path / ("long" * 100)))
    with pytest.warns(UserWarning, match="could not be written"):
        assert same(cached_arrays(KEY, squares), squares())


def test_a_folder_in_the_place_of_the_entry_costs_warnings_not_the_result(entry):
    entry.unlink()
    entry.mkdir()
    with pytest.warns(UserWarning, match="damaged"), pytest.warns(UserWarning, match="not be written"):
        assert same(cached_arrays(KEY, squares), squares())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_costs_a_warning_and_leaves_nothing_behind(folder, monkeypatch, step):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.warns(UserWarning, match="could not be written .*No space left"):
        assert same(cached_arrays(KEY, squares), squares())
    assert list(folder.iterdir()) == []


def test_an_interrupt_while_writing_leaves_nothing_behind(folder, monkeypatch):
    def interrupted(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached_arrays(KEY, squares)
    assert list(folder.iterdir()) == []


def test_an_entry_appears_by_one_rename_of_a_whole_file(folder, monkeypatch):
    renames = []

    def observed(source, target, rename=os.replace):
        renames.append((Path(source).parent, Path(source).read_bytes(), Path(target).exists()))
        rename(source, target)

    monkeypatch.setattr(os, "replace", observed)
    cached_arrays(KEY, squares)
    (path,) = folder.iterdir()
    assert renames == [(folder, path.read_bytes(), False)]


def test_a_failure_of_make_is_passed_on_and_nothing_is_kept(folder):
    with pytest.raises(ZeroDivisionError):
        cached_arrays(KEY, lambda: {"values": np.array(1 / 0)})
    assert not folder.exists()


def test_processes_that_make_the_same_entry_at_once_all_succeed(folder, monkeypatch):
    """Each loads the package, says so, waits for the word, and makes twenty banks; a warning fails it."""
    program = """if True:
        import sys
        from es_ssm.filters import hankel_filters
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(1, 21):
            found = hankel_filters(200, n)
        print(found.filters.sum())
    """
    environment = {**os.environ, "ES_SSM_CACHE": str(folder), "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = {child.communicate(timeout=120)[0] for child in children}

    assert [child.returncode for child in children] == [0, 0, 0, 0]
    assert len(outputs) == 1
    assert [path.suffix for path in folder.iterdir()] == [".safetensors"] * 20
    monkeypatch.setattr(filters, "exact_filters", must_not_be_called)
    assert {f"{filters.hankel_filters(200, n).filters.sum()}\n" for n in range(1, 21)} > outputs
