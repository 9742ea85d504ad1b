"""The laboratory's verbs: `evenkeel plan`, `simulate` and `papers`. The entry point of the group `evenkeel.commands` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evenkeel_cli.commands import Command

COMMANDS: Final[Mapping[str, Command]] = {
    "plan": Command(
        "evenkeel_laboratory.commands.plan",
        "Predict from a recording who gains and who loses by a change.",
        after="record",
    ),
    "simulate": Command(
        "evenkeel_laboratory.commands.simulate",
        "Simulate a fleet under a trace or a workload, in virtual time.",
        after="demo",
    ),
    "papers": Command(
        "evenkeel_laboratory.commands.papers",
        "Run the papers' experiments, beside the published numbers.",
        after="simulate",
    ),
}
"""Verb → its command."""
