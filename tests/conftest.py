"""Hypothesis: the same examples in every run. `HYPOTHESIS_PROFILE=explore` looks for new ones, for long."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

settings.register_profile("evenkeel", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("explore", deadline=None, max_examples=1000)
# For tests/mutation: a test that fails need not say why; shrinking takes longer than all the rest.
settings.register_profile(
    "mutation",
    deadline=None,
    derandomize=True,
    max_examples=40,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "evenkeel"))
