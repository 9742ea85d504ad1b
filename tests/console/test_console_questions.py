"""The questions of docs/design/console-questions.md on live pages: each takes as many clicks as that page says.

`make test-console ARGS="-s -k questions"` prints the clicks and the seconds. No test asserts a time.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, CONSOLE_MARKS
from tests.support.console_scenes import FAIL, SCENES, Scene

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "console/tests/questions.mjs"
PAGE = ROOT / "docs/design/console-questions.md"
ROW = re.compile(r"\| (?P<number>\d+) \| [^|]+ \| (?P<before>[^|]+) \| (?P<after>[^|]+) \| ")

pytestmark = CONSOLE_MARKS


def documented() -> dict[int, int]:
    """The clicks that each question takes by the page."""
    rows = filter(None, map(ROW.match, PAGE.read_text().splitlines()))
    return {int(row["number"]): int(row["after"].split(",")[0]) for row in rows}


async def answers(name: str, scene: Scene) -> list[dict[str, float]]:
    """Answer the questions of a scene in a browser."""
    worst = [f"tenant-{one[1:].split('-')[0]}/{one}" for one in FAIL]
    given = {"chromium": CHROMIUM, "admin": scene.admin, "traffic": scene.traffic, "key": scene.key}
    process = await asyncio.create_subprocess_exec(
        "node",
        str(SCRIPT),
        name,
        json.dumps(given | {"worst": worst}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdin is not None and process.stdout is not None
    output, found = "", []
    try:
        async for line in process.stdout:
            output += line.decode()
            if line.startswith(b"{"):
                found.append(json.loads(line))
            elif line.strip() == b"stop":
                assert scene.stop_router is not None
                await scene.stop_router()
                process.stdin.write(b"done\n")
        assert await process.wait() == 0, output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return found


ASKED: dict[str, set[int]] = {
    "outage": {1, 2, 4, 10},
    "empty": {1, 2, 3},
    "silent": {2},
    "flood": {5, 6, 7, 14, 16},
    "bad_replica": {8, 9},
    "crowd": {11, 14},
    "explained": {12, 13, 17},
    "failing": {18},
    "limited": {15, 19, 20},
}


def test_each_of_the_twenty_questions_is_asked() -> None:
    assert set(ASKED) == set(SCENES)
    assert set().union(*ASKED.values()) == set(documented()) == set(range(1, 21))


@pytest.mark.parametrize("name", SCENES)
async def test_each_question_takes_the_clicks_that_the_page_names(name: str) -> None:
    async with SCENES[name]() as scene:
        found = await answers(name, scene)
    for one in found:
        sys.stdout.write(json.dumps(one) + "\n")  # for `pytest -s`
    assert {one["number"] for one in found} == ASKED[name]
    clicks = documented()
    assert {one["number"]: one["clicks"] for one in found} == {
        number: clicks[number] for number in ASKED[name]
    }
