"""Why SGLang with the plug-in refuses command lines: in one short process for many of them, without an engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.sglang.engine import environment_of, installed


def refusals(
    *lines: Sequence[str], path: Sequence[str] = (), sglang: str | None = None
) -> list[str]:
    """Of each command line: empty where it is read. A line may have variables of its environment (`VARIABLE=value`). `path`: for
    PYTHONPATH; `sglang`: another version laid beside the installed one."""
    folder = installed()
    flags = [[f"--model-path={folder / 'model'}", "--device=cpu", *line] for line in lines]
    done = subprocess.run(
        [
            *(folder / "bin/python", Path(__file__).with_name("read_flags.py")),
            json.dumps(flags),
        ],
        env=environment_of({"PYTHONPATH": os.pathsep.join(path)} if path else {}, sglang=sglang),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found
