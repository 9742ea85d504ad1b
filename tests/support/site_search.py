"""Asks the search of the documentation's site what people ask: `python -m tests.support.site_search SITE`, as `make docs` does.

`site_search.mjs` runs the search of the built site in Node, by the worker and the index that its pages load.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

QUESTIONS: Final = Path(__file__).with_suffix(".yaml")
SCRIPT: Final = Path(__file__).with_suffix(".mjs")
MIN_FIRST: Final = 27
"""Of the questions, those whose page has to be the first result."""


class Miss(NamedTuple):
    """A question whose page is not the first result."""

    question: str
    wanted: str
    found: Sequence[str]


def questions() -> Mapping[str, str]:
    """Question, with the page wanted below docs/, without its suffix."""
    groups = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    return {question: page for group in groups.values() for question, page in group.items()}


def misses(site: Path) -> Iterator[Miss]:
    """Ask every question, and yield those whose page is not first. Needs `node` on the path."""
    wanted = questions()
    done = subprocess.run(
        ["node", str(SCRIPT), str(site)],
        input=json.dumps(list(wanted)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    for (question, page), found in zip(wanted.items(), json.loads(done.stdout), strict=True):
        if found[:1] != [f"{page}.html"]:
            yield Miss(question, page, found[:3])


def main(site: Path) -> int:
    """Print the questions that miss; the exit status is 1 if these are too many."""
    missed = list(misses(site))
    total = len(questions())
    lines = [
        f"{miss.question!r} finds {', '.join(miss.found)} before {miss.wanted}.html"
        for miss in missed
    ]
    lines.append(f"{total - len(missed)} of {total} questions find their page first")
    sys.stdout.writelines(f"search: {line}\n" for line in lines)
    return int(total - len(missed) < MIN_FIRST)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
