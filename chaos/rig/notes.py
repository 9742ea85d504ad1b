"""Output of a run: sentences for its summary, and curves in `out/chaos` for `python -m chaos.plot`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chaos.rig.children import ROOT

FOLDER: Final = ROOT / "out" / "chaos"


class Curve(msgspec.Struct):
    """One tenant's lead over another during a scene, weighted tokens over weights, and the widest gap allowed."""

    scene: str
    times_s: list[float]
    leads: list[float]
    bound: float


class Notes:
    """Takes the notes of one scene."""

    def __init__(self, scene: str, write: Callable[[str], None]) -> None:
        self._scene = scene
        self._write = write

    def __call__(self, sentence: str) -> None:
        """A sentence for the summary."""
        self._write(f"{self._scene}: {sentence}")

    def keep(self, times_s: Sequence[float], leads: Sequence[float], *, bound: float) -> None:
        """Save a curve for plots."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        began_s = [time_s - times_s[0] for time_s in times_s]
        curve = Curve(self._scene, began_s, list(leads), bound)
        name = "".join(c if c.isalnum() else "-" for c in self._scene)
        (FOLDER / f"{name}.json").write_bytes(msgspec.json.encode(curve))


def curve_of(path: Path) -> Curve:
    """A saved curve."""
    return msgspec.json.decode(path.read_bytes(), type=Curve)
