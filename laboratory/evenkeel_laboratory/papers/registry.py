"""Every experiment by its name, and the page of each paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from evenkeel_laboratory.papers import andes, dlpm, dlpm_engine, vtc, vtc_figures
from evenkeel_laboratory.papers.results import Table, page
from evenkeel_laboratory.papers.runs import Context

EXPERIMENTS: Final[Mapping[str, Callable[[Context], Table]]] = MappingProxyType(
    {
        **vtc.TABLES,
        **vtc_figures.FIGURES,
        "dlpm-fig1": dlpm_engine.figure_1,
        "dlpm-fig4": dlpm.figure_4,
        "dlpm-fig7": dlpm.figure_7,
        "dlpm-fig8": dlpm.figure_8,
        "dlpm-fig10": dlpm.figure_10,
        "dlpm-fig11": dlpm_engine.figure_11,
        "dlpm-fig12": dlpm_engine.figure_12,
        **andes.EXPERIMENTS,
    }
)
"""The name of an experiment begins with that of its paper."""
PAPERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "vtc": "VTC: Fairness in Serving Large Language Models (OSDI'24)",
        "dlpm": "DLPM and D2LPM: Locality-aware Fair Scheduling in LLM Serving",
        "andes": "Andes: Quality of Experience in LLM-Based Text Streaming",
    }
)


def pages(tables: Mapping[str, Table], *, seed: int) -> dict[str, str]:
    """The Markdown page of each paper of which there is a table."""
    written = {}
    for paper, title in PAPERS.items():
        own = [table for name, table in tables.items() if name.startswith(f"{paper}-")]
        if own:
            written[paper] = page(title, _about(paper, seed=seed), own)
    return written


def _about(paper: str, *, seed: int) -> list[str]:
    return [
        "Which published results of the paper come out here, and which do not.",
        "",
        f"    evenkeel papers --only {paper} --seed {seed}",
        "",
        "The engine is a model: order and ratios count. A section marked *figure only* has no published number, so its claim is compared.",
    ]
