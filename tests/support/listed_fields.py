"""Which fields of engines and clients the router has classified: those that are in neither of its lists."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from evenkeel_router.api.fields import CLOSED, NESTED, OPEN

NOT_IN_A_BODY = frozenset({"raw_request", "request"})
"""Parameters of functions that are no field."""


Names: TypeAlias = Mapping[str, Sequence[str]]
"""Path, or member with fields of its own → names of its fields."""


def names_of(
    python: Path, models: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> Names:
    """Read the models, in a process that imports an engine."""
    done = subprocess.run(
        # -P: this folder has modules with the names of others.
        [str(python), "-P", str(Path(__file__).with_name("model_fields.py")), json.dumps(models)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: Names = json.loads(done.stdout.splitlines()[-1])
    assert all(len(names) > 1 for names in found.values()), "every model was read"
    return found


def unclassified(found: Names) -> Names:
    """The names that the router has not classified."""
    listed = {**OPEN, **NESTED}
    missing = {
        place: sorted(set(names) - listed[place] - set(CLOSED) - NOT_IN_A_BODY)
        for place, names in found.items()
    }
    return {place: names for place, names in missing.items() if names}
