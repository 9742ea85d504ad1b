"""What Go's tools print, and what is pinned."""

from __future__ import annotations

from e2e.rig.definitions import FILES, _objects
from e2e.rig.layout import SOURCE


def test_json_one_after_another_is_read_to_its_end() -> None:
    assert _objects('{"Path": "a"}\n{\n "Path": "b"}\n\n') == [{"Path": "a"}, {"Path": "b"}]
    assert _objects("\n") == []


def test_every_module_is_pinned_with_its_sum() -> None:
    pinned = (SOURCE / "programs" / "definitions" / "go.mod").read_text()
    sums = (SOURCE / "programs" / "definitions" / "go.sum").read_text()
    for module, _ in FILES.values():
        version = next(line.split()[1] for line in pinned.splitlines() if module in line)
        assert f"{module} {version} h1:" in sums
