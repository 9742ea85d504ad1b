"""The gap between backlogged clients through 200 scale events, with R5 and without (design R7).

    python -m bench.churn_plot [--out docs/design] [--seed 1]

From the repository root; a minute or two. Two figures, with the adversaries and fleets of tests/support/churn.py: in
`0003-churn-game.png` the adversary also chooses every admission and overshoot that the deficit rules allow, on
eight replicas; in `0003-churn-policy.png` the real DLPM serves requests on two replicas with a small memory. Seeds are
the same for all curves of a panel. The y axis is the largest gap over any interval so far, over the proven bound.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import matplotlib

matplotlib.use("Agg")  # no display needed

import matplotlib.pyplot as plt
from evenkeel_fairshare.bounds import Churn, churn_gap
from evenkeel_fairshare.ledger import CarryRules, EqualWeights

from tests.support.churn import (
    ADVERSARIES,
    DlpmReplica,
    Fleet,
    GameReplica,
    Gaps,
    Replica,
    Seeds,
    lead_less_seeds_elsewhere,
    no_seeds,
    seeds_from_ledger,
)

Seeding = Callable[[Fleet, str, str], Seeds]
CURVES: tuple[tuple[str, Seeding, str], ...] = (
    ("without R5", no_seeds, "tab:red"),
    ("R5 without a limit", lead_less_seeds_elsewhere, "tab:orange"),
    ("R5 as built", seeds_from_ledger, "tab:blue"),
)
CLIENTS = tuple(f"ns/t/{name}" for name in "abcd")
WEIGHTS = EqualWeights()
MEMORY, INPUT, OUTPUT = 48, 12, 8


@dataclass(frozen=True)
class Figure:
    """One picture: a kind of replica, and how long it is watched."""

    name: str
    title: str
    churn: Churn
    new_replica: Callable[[Churn], Replica]
    events: int
    pace: int


FIGURES = (
    Figure(
        "0003-churn-game.png",
        "The adversary chooses every admission: 8 replicas, U = 512, Q = 128",
        Churn(replicas=8, overshoot=512, quantum=128),
        lambda churn: GameReplica(
            quantum=churn.quantum, overshoot=churn.overshoot, weights=WEIGHTS
        ),
        events=200,
        pace=2,
    ),
    Figure(
        "0003-churn-policy.png",
        "The real policy: 2 replicas, memory of 48 tokens, U = 108, Q = 32",
        Churn(replicas=2, overshoot=INPUT + 2 * MEMORY, quantum=32),
        lambda churn: DlpmReplica(
            quantum=churn.quantum,
            memory_tokens=MEMORY,
            max_input=INPUT,
            max_output=OUTPUT,
            weights=WEIGHTS,
        ),
        events=600,
        pace=8,
    ),
)


def curve(
    figure: Figure, adversary: Callable[[Fleet, int], None], seeding: Seeding, seed: int
) -> tuple[list[int], list[float]]:
    """Scale events, and the largest gap so far over the bound."""
    churn = figure.churn
    fleet = Fleet(
        Random(seed),
        CLIENTS,
        rules=CarryRules(quantum=churn.quantum, overshoot=churn.overshoot),
        weights=WEIGHTS,
        new_replica=lambda: figure.new_replica(churn),
        seeding=seeding,
    )
    gaps, events, ratios = Gaps(), [], []
    fleet.join(churn.replicas)
    while fleet.events < figure.events + churn.replicas:
        for _ in range(figure.pace * len(fleet.live)):
            fleet.progress(fleet.rng.choice(sorted(fleet.live)), favourite=CLIENTS[0])
        gaps.note({client: fleet.served(client) for client in CLIENTS})
        adversary(fleet, churn.replicas)
        fleet.housekeep()
        events.append(fleet.events - churn.replicas)
        ratios.append(gaps.largest / churn_gap(churn))
    return events, ratios


def draw(figure: Figure, out: Path, seed: int) -> None:
    """One picture with a panel per adversary."""
    picture, panels = plt.subplots(2, 3, figsize=(12, 6.5), sharex=True)
    for panel, adversary in zip(panels.flat, ADVERSARIES, strict=True):
        panel.set_title(adversary.__name__.replace("_", " "), fontsize=10)
        panel.axhline(1, color="black", linewidth=0.8, linestyle="--")
        for label, seeding, colour in CURVES:
            events, ratios = curve(figure, adversary, seeding, seed)
            panel.plot(events, ratios, label=label, color=colour, linewidth=1.4)
            print(f"{figure.name} {adversary.__name__:<16} {label:<20} {ratios[-1]:6.2f}")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    picture.suptitle(figure.title, fontsize=11)
    picture.supxlabel("scale events", fontsize=10)
    picture.supylabel("largest gap / proven bound", fontsize=10)
    picture.tight_layout()
    picture.savefig(out / figure.name, dpi=80)
    plt.close(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/design"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for figure in FIGURES:
        draw(figure, args.out, args.seed)


if __name__ == "__main__":
    main()
