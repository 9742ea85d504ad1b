"""How many examples a property test tries. The profile says how thorough a run is, the test how dear an example is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

USUAL = 40
"""Examples of a test that asks for no number, in the profile `ci`."""

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenkeel"
"""Outside the clone, so that a failure is tried again first, in the next clone too."""


def load_profile(name: str) -> None:
    """Random examples in `ci`, `quick` and `nightly`; `mutation` tries the same ones for every mutant."""
    common = settings(
        deadline=None,
        print_blob=True,
        database=DirectoryBasedExampleDatabase(CACHE / "hypothesis"),
        suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no fault of the code
    )
    for profile, share in (("quick", 0.5), ("ci", 1), ("nightly", 25)):
        settings.register_profile(profile, common, max_examples=int(USUAL * share))
    settings.register_profile(
        "mutation",
        common,
        derandomize=True,
        database=None,
        max_examples=USUAL,
        # A test that fails need not say why; shrinking takes longer than all the rest.
        phases=[Phase.explicit, Phase.generate],
    )
    settings.load_profile(name)


def examples(count: int, **others: Any) -> settings:
    """Settings with `count` examples in the profile `ci`, and in proportion in another."""
    return settings(max_examples=max(1, count * settings.default.max_examples // USUAL), **others)
