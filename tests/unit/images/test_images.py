"""What goes into the images: stated in three places that must agree, and compiled to the same bytes."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from images import base
from images.errors import NotHereError
from images.recipe import ARCHITECTURE, PRODUCTS

ROOT = Path(__file__).parents[3]
SGLANG = (ROOT / "images" / "sglang.Dockerfile").read_text()
DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text()


def entry_points_of(folder: Path) -> list[EntryPoint]:
    (found,) = distributions(path=[str(folder)])
    return list(found.entry_points)


def stage(name: str) -> str:
    """The lines of one stage."""
    found = re.search(
        rf"^FROM .*\S AS {name}\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    )
    assert found is not None, name
    return found[1]


def test_another_distribution_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"ID": "ubuntu", "VERSION_ID": "24.04", "PRETTY_NAME": "Ubuntu 24.04.3 LTS"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: found)
    with pytest.raises(NotHereError, match=r"this is Ubuntu 24.*container of debian:12"):
        base.build(base.RUNTIME)


def test_each_image_holds_exactly_the_packages_of_its_cache_key() -> None:
    for target, folders in PRODUCTS.items():
        copied = re.findall(r"^COPY (\w+)/\w+ /site/", stage(f"{target}-site"), re.MULTILINE)
        assert tuple(copied) == folders


def test_everything_that_is_copied_is_in_the_build_context() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert source in allowed
            assert (ROOT / source).exists()


def test_a_simulated_replica_ships_the_api_s_policies_and_no_experiments(
    tmp_path: Path,
) -> None:
    ignored = {
        line for line in (ROOT / ".dockerignore").read_text().split() if line[0] not in "!*#"
    }
    for folder in PRODUCTS["simulator"]:
        package = f"{folder}/evenkeel_{folder}"
        left_out = [Path(path).name for path in ignored if path.startswith(f"{package}/")]
        shutil.copytree(
            ROOT / package, tmp_path / Path(package).name, ignore=shutil.ignore_patterns(*left_out)
        )
    script = """
import importlib.util, sys
from evenkeel_contract.queueorder import ReplicaPolicyName
from evenkeel_fairshare.replica.registry import POLICIES
from evenkeel_simulator.server.settings import parse_arguments
assert set(POLICIES) == {name.value for name in ReplicaPolicyName}
assert not any("laboratory" in module for module in sys.modules)
assert importlib.util.find_spec("evenkeel_simulator.traffic") is None
for name in POLICIES:
    parse_arguments(["--model", "m", "--replica-policy", name]).make_policy()
parse_arguments(["--model", "m", "--replica-policy", "DLPM as printed"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr  # only the last line is refused
    assert "'DLPM as printed'" in done.stderr


def test_no_image_runs_as_root_and_each_starts_its_own_part() -> None:
    assert "USER 65532:65532" in stage("runtime")
    for target in PRODUCTS:
        assert f"FROM runtime AS {target}\n" in DOCKERFILE
        assert f'ENTRYPOINT ["python3", "-m", "evenkeel_{target}' in stage(target)


@pytest.mark.parametrize(
    ("extras", "want", "not_wanted"),
    [
        (["operator"], {"kopf", "msgspec", "xxhash"}, {"pytest", "uvloop"}),
        (["router", "kubernetes"], {"kubernetes", "uvloop", "xxhash"}, {"kopf", "typer"}),
    ],
)
def test_an_image_installs_its_extras_dependencies_without_the_project(
    extras: list[str], want: set[str], not_wanted: set[str]
) -> None:
    script = [sys.executable, ROOT / "images" / "project.py", "requirements", *extras]
    said = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {re.split(r"[^\w-]", line)[0] for line in said.stdout.splitlines()}
    assert want <= names
    assert not {"evenkeel", *not_wanted} & names


def test_the_router_of_an_image_has_the_kubernetes_client() -> None:
    extras = re.search(r"requirements (.+) > router.txt", DOCKERFILE)
    assert extras is not None
    script = [sys.executable, ROOT / "images" / "project.py", "requirements", *extras[1].split()]
    said = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {re.split(r"[^\w-]", line)[0] for line in said.stdout.splitlines()}
    assert {"aiohttp", "kubernetes", "msgspec", "uvloop"} <= names
    assert not [name for name in names if name.startswith("evenkeel")]


def platform_options(architecture: str) -> str:
    script = [sys.executable, ROOT / "images" / "project.py", "platform", architecture]
    return subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_pip_takes_the_wheels_of_another_architecture_and_builds_none() -> None:
    assert platform_options("").split() == platform_options(ARCHITECTURE).split() == []
    other, machine = {"amd64": ("arm64", "aarch64"), "arm64": ("amd64", "x86_64")}[ARCHITECTURE]
    options = platform_options(other).split()
    assert options[0] == "--only-binary=:all:"
    assert f"--platform=manylinux_2_28_{machine}" in options
    assert options[-1] == f"--platform=manylinux_2_36_{machine}"  # Debian 12's own glibc
    assert all(option.endswith(f"_{machine}") for option in options[1:])


def test_nothing_runs_in_a_stage_of_another_architecture() -> None:
    assert "FROM --platform=${BUILDPLATFORM" in DOCKERFILE
    for target in PRODUCTS:
        assert "RUN" not in stage(target)
    assert "RUN" not in stage("runtime")


def test_programs_in_an_image_know_their_version(tmp_path: Path) -> None:
    script = [sys.executable, ROOT / "images" / "project.py", "metadata", tmp_path]
    subprocess.run(script, cwd=ROOT, check=True)
    (found,) = distributions(path=[str(tmp_path)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (found.name, found.version) == (project["name"], project["version"])
    assert not list(found.entry_points)


def test_sglang_finds_the_plug_in_of_its_image(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "plugins/sglang/evenkeel_sglang", tmp_path / "evenkeel_sglang")
    script = [sys.executable, ROOT / "images" / "project.py", "metadata", tmp_path]
    subprocess.run(script, cwd=ROOT, check=True)
    (found,) = entry_points_of(tmp_path)
    assert (found.group, found.name) == ("sglang.srt.plugins", "evenkeel")
    assert found.value == "evenkeel_sglang.plugin:register"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_plug_ins_image_copies_what_its_context_holds(engine: str) -> None:
    recipe = (ROOT / "images" / f"{engine}.Dockerfile").read_text()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    for sources in re.findall(r"^COPY (.+) \S+$", recipe, re.MULTILINE):
        assert set(sources.split()) <= allowed
    for package in ("fairshare", "contract", "plugins/common", f"plugins/{engine}"):
        assert f"COPY {package}/evenkeel_" in recipe
    assert recipe.count("/evenkeel_") == 4


def test_bytecode_is_the_same_each_time_and_python_takes_it_unchecked(tmp_path: Path) -> None:
    module = tmp_path / "evenkeel_example.py"
    module.write_text("names = {'a', 'b', 'c', 'd'}\ndef f(x): return x in {'p', 'q', 'r'}\n")
    (tmp_path / "template.py").write_text("class {{ name }}:")
    compiled = Path(importlib.util.cache_from_source(str(module)))
    made = set()
    for _ in range(2):
        script = [sys.executable, ROOT / "images" / "bytecode.py", tmp_path, "/opt/evenkeel"]
        subprocess.run(script, env={"PYTHONHASHSEED": "0"}, check=True)
        made.add(compiled.read_bytes())
    assert len(made) == 1
    module.write_text("raise AssertionError('the source was read')")
    said = subprocess.run(
        [sys.executable, "-c", "import evenkeel_example as e; print(e.f('q'))"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "True\n"
