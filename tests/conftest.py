"""Hypothesis: the same examples in every run. `HYPOTHESIS_PROFILE=explore` looks for new ones, for long."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

SLOW_IS_FINE = [HealthCheck.too_slow]  # a busy machine is no fault of the code

settings.register_profile(
    "evenkeel",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=SLOW_IS_FINE,
)
settings.register_profile(
    "explore", deadline=None, max_examples=1000, suppress_health_check=SLOW_IS_FINE
)
# For tests/mutation: a test that fails need not say why; shrinking takes longer than all the rest.
settings.register_profile(
    "mutation",
    deadline=None,
    derandomize=True,
    max_examples=40,
    database=None,
    suppress_health_check=SLOW_IS_FINE,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "evenkeel"))
