"""The command line as a whole: help, and the requested command."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import tomllib
from inspect import getdoc
from pathlib import Path

import pytest
from evenkeel_cli import main
from evenkeel_cli.exitcode import ExitCode
from typer.testing import CliRunner

ROOT = Path(__file__).parents[3]


def test_help_lists_every_command_with_the_first_line_of_its_own_help() -> None:
    listed = CliRunner().invoke(main.build(["--help"]), ["--help"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    for name, (module, help_line, _) in main.verbs().items():
        doc = getdoc(main._function(module, name))
        assert doc is not None
        assert doc.splitlines()[0] == help_line
        assert help_line in listed.output


@pytest.mark.parametrize("name", main.verbs())
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(main.build([name]), [name, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("arguments", [[], *([name] for name in main.verbs())])
def test_help_fits_a_terminal_of_80_columns_and_cuts_nothing(arguments: list[str]) -> None:
    requested = [*arguments, "--help"]
    text = CliRunner().invoke(main.build(requested), requested, env={"COLUMNS": "80"}).output
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.replace("[ARGS]...", "").replace("{FILE}...", "")
    assert "…" not in text


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(main.build(["upp"]), ["upp"]).exit_code == 2


def test_help_imports_no_command() -> None:
    code = (
        "import sys; sys.path[:0] = %r; from evenkeel_cli.main import build; build(['--help']);"
        "print([name for name in ('aiohttp', 'httpx', 'matplotlib', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code % sys.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from evenkeel_cli.entry import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_version_is_that_of_the_installed_distribution(tmp_path: Path) -> None:
    script = [sys.executable, ROOT / "images" / "project.py", "metadata", tmp_path]
    subprocess.run(script, cwd=ROOT, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    done = run("--version", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert done.stdout == f"evenkeel {project['version']}\n"
    assert main.DISTRIBUTION == project["name"]


@pytest.mark.parametrize(
    ("shell", "line", "want"),
    [
        ("bash", "evenkeel ", set(main.verbs())),
        ("bash", "evenkeel si", {"simulate"}),
        ("bash", "evenkeel up --prob", {"--probe-port"}),
        *(
            (shell, "evenkeel simulate --repl", {"--replicas", "--replica-policy"})
            for shell in ("bash", "zsh", "fish")
        ),
    ],
)
def test_shells_complete_commands_and_their_options(shell: str, line: str, want: set[str]) -> None:
    words = line.split(" ")
    done = run(
        _EVENKEEL_COMPLETE=f"complete_{shell}",
        COMP_WORDS="\n".join(words),
        COMP_CWORD=str(len(words) - 1),
        _TYPER_COMPLETE_ARGS=line,
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    offered = set(re.findall(r"[\w-]+", done.stdout))
    assert want <= offered, done.stdout + done.stderr
    assert "--speed" not in offered


def test_bash_completes_with_the_script_that_the_program_prints(tmp_path: Path) -> None:
    program, script = tmp_path / "evenkeel", tmp_path / "main.py"
    script.write_text(
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "sys.argv[0] = 'evenkeel'\nfrom evenkeel_cli.entry import main; main()\n"
    )
    # The path of the interpreter may be too long for a first line, or hold a space.
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(script)])} "$@"\n')
    program.chmod(0o755)
    commands = """
        source <(_EVENKEEL_COMPLETE=source_bash evenkeel)
        COMP_WORDS=(evenkeel check --j) COMP_CWORD=2
        $(complete -p evenkeel | sed -E 's/.*-F ([^ ]+).*/\\1/')  evenkeel
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", commands], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["--json"], done.stderr


def test_an_interrupted_command_ends_with_its_own_exit_code() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    app = main.build([])
    app.command("interrupted")(main._interruptible(interrupted))
    assert CliRunner().invoke(app, ["interrupted"]).exit_code == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("up", "none.yaml"), ExitCode.INVALID),
        (("up", "--port=x"), ExitCode.INVALID),
        (("check", "none.yaml"), ExitCode.INVALID),
        (("status", "--state-dir=/nonexistent"), ExitCode.FAILED),
        (("top", "--url=:", "--once"), ExitCode.INVALID),
        (("top", "--url=127.0.0.1:1", "--once"), ExitCode.FAILED),
        (("replay", "--trace=none.csv"), ExitCode.INVALID),
        (("simulate",), ExitCode.INVALID),
        (("demo", "--quantum=much"), ExitCode.INVALID),
        (("demo", "--out=/proc/nowhere"), ExitCode.FAILED),
        (("none",), ExitCode.INVALID),
    ],
)
def test_exit_codes_mean_the_same_in_all_commands(
    arguments: tuple[str, ...], code: ExitCode
) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("variable", "coloured"), [("COLORTERM", True), ("NO_COLOR", False)])
def test_no_color_removes_colours_on_a_terminal(variable: str, coloured: bool) -> None:
    outer, inner = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", "from evenkeel_cli.entry import main; main()", "check", "none.yaml"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color", variable: "1"},
        stdout=inner, stderr=inner, check=False,
    )  # fmt: skip
    text = os.read(outer, 4096).decode()
    os.close(inner)
    os.close(outer)
    assert "cannot be read" in text
    assert ("\x1b[31m" in text) == coloured


def test_a_terminal_of_latin_1_gets_what_it_can_show() -> None:
    code = "import sys; from evenkeel_cli import main; main.main = lambda: print('2 → 3'); from evenkeel_cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "latin-1"},
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"2 ? 3\n", b"")


def test_an_interrupt_while_packages_are_imported_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = run("top", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")
