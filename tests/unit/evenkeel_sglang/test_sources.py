"""An SGLang that cannot be imported is checked by its source, with the same result for each place."""

from __future__ import annotations

from pathlib import Path

import pytest
from evenkeel_sglang import check, sources

MODULES = {
    "sglang/srt/base.py": """
class Mixin:
    def process(self, batch, *, result=None): ...
""",
    "sglang/srt/engine.py": """
from sglang.srt.base import Mixin
from sglang.srt.base import Mixin as Other

class Engine(Mixin):
    @staticmethod
    def flags(parser): ...
    @classmethod
    def read(cls, args): ...
    value = 1

async def match(req, tree_cache, *rest, **named): ...
""",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("sglang.srt.engine.Engine.process", ("self", "batch", "result")),
        ("sglang.srt.engine.Engine.flags", ("parser",)),
        ("sglang.srt.engine.Engine.read", ("args",)),
        ("sglang.srt.engine.Other.process", ("self", "batch", "result")),
        ("sglang.srt.engine.match", ("req", "tree_cache", "rest", "named")),
        ("sglang.srt.engine.Engine.value", None),
        ("sglang.srt.engine.Engine.gone", None),
        ("sglang.srt.gone.Engine.read", None),
    ],
)
def test_parameters_are_those_that_a_caller_sees(
    package: Path, path: str, want: tuple[str, ...] | None
) -> None:
    assert sources.parameters(package, path) == want


def test_a_folder_without_the_places_fits_nowhere(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = package / "sglang-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.1\n")
    assert check.main([str(package)]) == 1
    *places, last = capsys.readouterr().out.splitlines()
    assert all(place.startswith("no ") for place in places)
    assert last.startswith(f"SGLang 0.0.1: 0 of {len(places)} places fit")
