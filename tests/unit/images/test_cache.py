"""The cache of programs and images, which clones and runs share."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from images import cache

DAY_S = 24 * 3600


def test_of_two_that_make_the_same_one_works_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CACHE", tmp_path)
    working: list[str] = []

    def work() -> None:
        with cache.one_at_a_time("programs"):
            working.append("second")

    with cache.one_at_a_time("programs"):
        other = threading.Thread(target=work)
        other.start()
        other.join(timeout=0.2)
        working.append("first")
    other.join(timeout=30)
    assert working == ["first", "second"]


def test_a_result_goes_a_day_after_its_last_use(tmp_path: Path) -> None:
    used, recent, old = (tmp_path / f"router-{name}.tar" for name in ("a", "b", "c"))
    for path, age_s in ((used, 30 * DAY_S), (recent, 0.9 * DAY_S), (old, 1.1 * DAY_S)):
        path.touch()
        then_s = path.stat().st_mtime - age_s
        os.utime(path, (then_s, then_s))
    assert cache.use(used, others="router-*.tar") == used
    assert sorted(path.name for path in tmp_path.iterdir()) == ["router-a.tar", "router-b.tar"]
