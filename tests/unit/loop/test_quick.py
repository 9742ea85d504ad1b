"""Which tests are near to a change, and what is said of the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loop import deadline
from loop.quick import FILES, Tree, chosen, is_test
from loop.stages import ROOT

TREE = Tree(ROOT)
GATES = "router/evenkeel_router/gate/gates.py"


def test_a_direct_test_comes_before_one_through_another_module() -> None:
    tests = TREE.near(["fairshare/evenkeel_fairshare/replica/dlpm.py"])
    assert tests["tests/property/test_dlpm_theorems.py"] == 1
    assert list(tests.values()) == sorted(tests.values())
    assert "/unit/" in next(iter(tests))
    assert max(tests.values()) > 1


def test_a_changed_test_is_nearest_and_a_helper_leads_to_its_tests() -> None:
    own = "tests/property/test_gate.py"
    assert TREE.near([own]) == {own: 0}
    assert TREE.near(["tests/support/theorems.py"])[own] == 1


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("charts/evenkeel/values.schema.json", "tests/unit/charts/test_chart.py"),
        ("tests/golden/effects.yaml", "tests/golden/test_golden_effects.py"),
        ("tests/integration/conftest.py", "tests/integration/test_router_gate.py"),
    ],
)
def test_other_files_are_near_to_the_tests_that_name_them(path: str, want: str) -> None:
    assert want in TREE.near([path])


def test_a_new_file_is_near_to_the_tests_that_name_its_folder(tmp_path: Path) -> None:
    new = f"{tmp_path.name}.yaml"  # no text has it
    assert "tests/unit/monitoring/test_generated.py" in TREE.near([f"monitoring/{new}"])
    assert TREE.near([f"{tmp_path.name}/{new}"]) == {}


def test_suites_with_an_environment_of_their_own_are_left_out() -> None:
    assert not is_test("tests/sglang/test_plugin.py")
    assert not is_test("tests/support/ports.py")
    assert all(is_test(path) for path in TREE.near([GATES]))


def test_what_is_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tests = {f"tests/test_{n:03}.py": 1 for n in range(FILES + 2)}
    assert list(chosen(tests)) == list(tests)[:FILES]
    assert (
        f"left out: 2 test files further away, from tests/test_{FILES:03}.py on"
        in capsys.readouterr().out
    )


def test_a_run_in_which_no_test_had_time_fails_and_says_it(tmp_path: Path) -> None:
    (tmp_path / "test_late.py").write_text(
        "def test_one(): raise SystemExit\ndef test_two(): raise SystemExit\n"
    )
    environment = os.environ | {deadline.TIME_S: "-1", "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "loop.deadline",
        "-n",
        "1",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    assert "2 tests did not run: no time was left" in done.stdout
