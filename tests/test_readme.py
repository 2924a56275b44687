"""The README's example runs as it stands, and so do the commands that follow it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLE = "".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
EXAMPLE += "torch.testing.assert_close(logits, model(tokens, budget=4)[:, 99], rtol=1e-4, atol=1e-6)\n"


def python(code, *arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_example_and_its_commands_run(tmp_path):
    first = python(EXAMPLE, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["phone"]
    commands = re.findall(r"^es-ssm (.*?) *#", README, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        found = python("from es_ssm.cli import main; main()", *shlex.split(command), cwd=tmp_path)
        assert found.returncode == 0, found.stderr


def test_the_example_run_again_says_what_is_in_its_way(tmp_path):
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone" / "config.json").touch()
    again = python(EXAMPLE, cwd=tmp_path)
    assert again.stderr.splitlines()[-1] == (
        "FileExistsError: phone exists already and nothing is overwritten: remove it, or choose another"
    )
