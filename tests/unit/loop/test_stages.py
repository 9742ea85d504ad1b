"""Which stages a changed file runs."""

from __future__ import annotations

import re
from pathlib import Path

import grimp
import pytest

from loop.quick import TESTS_AND_PROGRAMS
from loop.stages import ROOT, Row, Stage, Table, git_lines, hashes_of, read_table

TABLE = read_table()
ALL = {stage.name for stage in TABLE.stages}
SUITES = {"test-sglang-core": "tests.sglang", "chaos-core": "chaos", "e2e-core": "e2e"}


def test_every_stage_is_a_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = " ".join(re.findall(r"^([a-z0-9. -]+):", makefile, re.MULTILINE)).split()
    assert {name for stage in TABLE.stages for name in (stage.name, stage.nightly)} <= set(targets)


def test_every_pattern_of_the_table_names_a_file() -> None:
    files = list(git_lines(ROOT, "ls-files", "-z"))
    for row in TABLE.rows:
        for pattern in row.files:
            assert any(Table([], [Row([pattern], frozenset("x"))]).stages_of(f) for f in files), (
                pattern
            )


@pytest.mark.parametrize(
    "path",
    [
        "Makefile",
        ".ci/run",
        "loop/stages.toml",
        "pyproject.toml",
        "constraints.txt",
        "fairshare/evenkeel_fairshare/replica/dlpm.py",
        "contract/evenkeel_contract/reports.py",
        "a-new-folder/file",
    ],
)
def test_what_all_is_built_on_runs_every_stage(path: str) -> None:
    assert TABLE.stages_of(path) == ALL


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("plugins/sglang/evenkeel_sglang/scheduling.py", {"test-sglang-core", "e2e-core"}),
        ("operator/evenkeel_operator/reconcile.py", {"e2e-core"}),
        ("charts/evenkeel/values.yaml", {"e2e-core"}),
        ("router/evenkeel_router/cluster/work_queue.py", {"e2e-core"}),
        ("router/evenkeel_router/gate/gates.py", {"chaos-core"}),
        ("console/src/main.tsx", {"test-console"}),
        ("docs/design/mutation.md", set()),
    ],
)
def test_a_change_runs_the_heavy_stages_of_its_part(path: str, want: set[str]) -> None:
    assert want <= TABLE.stages_of(path)
    assert (TABLE.stages_of(path) & {"test-sglang-core", "e2e-core"}) <= want


def test_a_suite_runs_when_a_helper_that_it_imports_changes() -> None:
    graph = grimp.build_graph(*TESTS_AND_PROGRAMS, cache_dir=None)
    for stage, suite in SUITES.items():
        modules = {name for name in graph.modules if f"{name}.".startswith(f"{suite}.")}
        for name in modules.union(*map(graph.find_upstream_modules, modules)):
            path = f"{name.replace('.', '/')}.py"
            assert not (ROOT / path).exists() or stage in TABLE.stages_of(path), path


def test_a_fingerprint_is_that_of_the_files_of_a_stage_alone() -> None:
    stages = [Stage(name, "changed", name) for name in ("chaos", "e2e")]
    table = Table(stages, [Row(["charts/*"], frozenset({"e2e"}))])
    before = {"charts/values.yaml": "1", "shared.py": "2"}
    chart = before | {"charts/values.yaml": "3"}
    assert table.fingerprint("chaos", chart) == table.fingerprint("chaos", before)
    assert table.fingerprint("e2e", chart) != table.fingerprint("e2e", before)
    for more in ({"shared.py": "4"}, {"new.py": "5"}):
        assert table.fingerprint("chaos", before | more) != table.fingerprint("chaos", before)


def test_contents_count_not_times_and_new_files_too(tmp_path: Path) -> None:
    list(git_lines(tmp_path, "init", "--quiet"))
    (tmp_path / "one").write_text("1")
    first = hashes_of(tmp_path)
    (tmp_path / "one").touch()
    assert hashes_of(tmp_path) == first
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "one").write_text("2")
    assert hashes_of(tmp_path).keys() == {"one", "link"}
    assert hashes_of(tmp_path)["one"] != first["one"]


def test_an_unknown_stage_in_a_row_is_an_error(tmp_path: Path) -> None:
    table = tmp_path / "stages.toml"
    table.write_text('stage = [{name="a", when="always"}]\nrow = [{files=["*"], stages=["b"]}]')
    with pytest.raises(ValueError, match="'b'"):
        read_table(table)
