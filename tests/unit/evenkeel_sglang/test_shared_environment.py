"""The part of an engine's environment that checkouts share: made once, found by what it is made from."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, with a folder of its own for what is shared."""
    path = ROOT / "plugins/sglang/cpu/shared_environment.py"
    spec = importlib.util.spec_from_file_location("shared_environment", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("EVENKEEL_ENGINES", str(tmp_path / "engines"))
    yield module


class Recorder:
    """Stands in for the installers, which need the package index."""

    def __init__(self) -> None:
        self.made: list[Path] = []
        self.own: list[tuple[Path, Path]] = []
        self.fails = False

    def make_shared(self, engine: str, folder: Path) -> None:
        self.made.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.fails:
            raise KeyboardInterrupt

    def make_own(self, folder: Path, shared: Path) -> None:
        assert (shared / "complete").exists()
        self.own.append((folder, shared))


@pytest.fixture
def installers(recipe: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(recipe, "make_shared", recorder.make_shared)
    monkeypatch.setattr(recipe, "make_own", recorder.make_own)
    return recorder


def test_checkouts_that_begin_at_once_share_one(recipe: ModuleType, installers: Recorder) -> None:
    folders = [Path(f"checkout-{number}") for number in range(4)]
    threads = [threading.Thread(target=recipe.main, args=("sglang", one)) for one in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (made,) = installers.made
    assert sorted(installers.own) == [(folder, made) for folder in folders]


def test_an_attempt_that_was_cut_short_is_made_again(
    recipe: ModuleType, installers: Recorder
) -> None:
    installers.fails = True
    with pytest.raises(KeyboardInterrupt):
        recipe.main("vllm", Path("checkout"))
    assert installers.own == []
    installers.fails = False
    recipe.main("vllm", Path("checkout"))
    assert installers.made[0] == installers.made[1]
    assert len(installers.own) == 1


def test_other_packages_are_another_environment(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, folder = tmp_path / "requirements.txt", tmp_path / "stub"
    (folder / "inner").mkdir(parents=True)
    listed.write_text("a==1")
    monkeypatch.setattr(recipe, "MADE_FROM", {"sglang": (listed, folder)})
    found = [recipe.fingerprint("sglang")]
    listed.write_text("a==2")
    found.append(recipe.fingerprint("sglang"))
    (folder / "inner" / "module.py").write_text("x = 1")
    found.append(recipe.fingerprint("sglang"))
    for left in ("build/lib/module.py", "a.egg-info/SOURCES.txt", "__pycache__/module.pyc"):
        (folder / left).parent.mkdir(parents=True)
        (folder / left).write_text("x = 2")
    assert found[-1] == recipe.fingerprint("sglang"), "what a build leaves changes nothing"
    assert len(set(found)) == 3
