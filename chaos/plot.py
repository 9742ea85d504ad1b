"""Curves of the last runs of chaos → bench/results/images/chaos.png: `python -m chaos.plot`.

python -m chaos.plot FILE …     these curves, one over the other → bench/results/images/chaos-drains.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import matplotlib as mpl

from chaos.rig.children import ROOT
from chaos.rig.notes import FOLDER, curve_of

PANELS: Final = {
    "test-two-routers-with-a-tenant-each": "ingress 95:5 and 5:95, two routers",
    "test-a-router-restarted-twenty-times-leaves-the-shares-as-they-were": "a router killed 20 times",
    "test-shares-hold-through-a-fleet-that-is-replaced-again-and-again-8-12-0-": "8 replicas replaced",
    "test-a-strategic-tenant-gains-less-than-one-bound-8-": "a tenant that schemes: its lead",
}
OUTPUT: Final = ROOT / "bench" / "results" / "images" / "chaos.png"


DRAINS: Final = OUTPUT.with_name("chaos-drains.png")


def main() -> None:
    """Plot the available curves of the documented scenes, or the given files."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    if files := sys.argv[1:]:
        figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
        for file in files:
            curve = curve_of(Path(file))
            axis.plot(curve.times_s, [lead - curve.leads[0] for lead in curve.leads], linewidth=1)
            for end in (-curve.bound, curve.bound):
                axis.axhline(end, color="tab:red", linestyle="--", linewidth=1)
        axis.set_xlabel("seconds")
        axis.set_ylabel("lead, weighted tokens over weight")
        figure.savefig(DRAINS, dpi=80)
        return
    figure, axes = plt.subplots(1, len(PANELS), figsize=(15, 3.4), layout="constrained")
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        curve = curve_of(FOLDER / f"{name}.json")
        axis.plot(curve.times_s, [lead - curve.leads[0] for lead in curve.leads], linewidth=1)
        for end in (-curve.bound, curve.bound):
            axis.axhline(end, color="tab:red", linestyle="--", linewidth=1)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("seconds")
    axes[0].set_ylabel("lead, weighted tokens over weight")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUTPUT, dpi=80)


if __name__ == "__main__":
    main()
