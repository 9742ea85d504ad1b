"""Cohere's client: rankings of the second version of its API, which vLLM serves under the same path."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.clients.fleet import MODEL
from tests.clients.programs.check import LIMIT_S, Found, Place, Program

_SCRIPT: Final = Path(__file__).with_name("cohere_python.py")


def _cohere(place: Place) -> Iterator[Found]:
    name = f"Cohere (Python) {place.programs.version('cohere')}"
    done = subprocess.run(
        [place.programs.python("python"), _SCRIPT, place.fleet.url, place.key, MODEL],
        env={"PATH": "/usr/bin:/bin", "HOME": str(place.folder), "NO_PROXY": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    yield Found(
        program=name,
        check="ClientV2.rerank",
        passed=said["order"] == [2, 0],
        figure=f"documents {said['order']}, best first",
    )
    yield Found(
        program=name,
        check="the client's own errors: 401, 404, 400",
        passed=said["errors"] == ["UnauthorizedError", "NotFoundError", "BadRequestError"],
        figure=", ".join(said["errors"]),
    )
    yield Found(
        program=name,
        check="Client.rerank",
        passed=None,
        figure="SGLang answers a bare list on `/v1/rerank`; vLLM answers as Cohere",
    )


PROGRAMS: Final = (Program("Cohere", _cohere),)
