"""The tree's shape: what would break imports or mislead a reader, whatever the code does."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "fairshare",
    "contract",
    "kube",
    "simulator",
    "laboratory",
    "router",
    "operator",
    "plugins/common",
    "plugins/sglang",
    "plugins/vllm",
    "cli",
)
ENGINES = ("sglang", "torch", "vllm")
"""What plug-ins import inside an engine."""
PACKAGES = [
    package
    for folder in FOLDERS
    if (ROOT / folder).is_dir()
    for package in (ROOT / folder).iterdir()
    if (package / "__init__.py").exists()
]


def python_files() -> list[Path]:
    return [path for package in PACKAGES for path in package.rglob("*.py")]


def test_component_folders_are_plain_so_operator_shadows_nothing() -> None:
    shadows = [folder for folder in FOLDERS if (ROOT / folder / "__init__.py").exists()]
    assert shadows == []


def test_test_folders_are_plain_so_that_equal_file_names_do_not_collide() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_module_of_ours_is_named_like_the_standard_library() -> None:
    taken = [path for path in python_files() if path.stem in sys.stdlib_module_names]
    assert [p for p in taken if p.stem not in ("__init__", "__main__")] == []


def test_every_package_is_typed_shipped_and_importable_from_the_tree() -> None:
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    want = {str(package.relative_to(ROOT)) for package in PACKAGES}
    assert set(hatch["targets"]["wheel"]["packages"]) == want
    assert set(hatch["dev-mode-dirs"]) == {str(Path(package).parent) for package in want}
    assert all((package / "py.typed").exists() for package in PACKAGES)


def test_every_module_says_what_it_is() -> None:
    mute = [p for p in python_files() if not re.match(r'(#.*\n)*"""', p.read_text())]
    assert mute == []


def test_files_stay_readable_at_a_sitting() -> None:
    long = [str(p.relative_to(ROOT)) for p in python_files() if p.read_text().count("\n") > 455]
    assert long == []


def test_names_of_tests_are_sentences_of_at_most_72_characters() -> None:
    files = [path for folder in ("tests", "e2e", "chaos") for path in (ROOT / folder).rglob("*.py")]
    names = [name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())]
    assert len(names) > 2000
    assert [name for name in names if len(name) > 72] == []


def test_the_release_imports_nothing_of_the_test_rig() -> None:
    files = [path for folder in ("release", "images") for path in (ROOT / folder).glob("*.py")]
    assert len(files) > 10
    assert [
        path.name
        for path in files
        if re.search(r"^(from|import) (e2e|tests)\b", path.read_text(), re.MULTILINE)
    ] == []


def test_every_module_can_be_imported_without_an_engine() -> None:
    failed = {}
    for path in python_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        package = next(at for at, part in enumerate(parts) if part.startswith("evenkeel_"))
        name = ".".join(parts[package:]).removesuffix(".__init__")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as why:
            if why.name is None or why.name.partition(".")[0] not in ENGINES:
                failed[name] = str(why)
    assert failed == {}
