"""Hypothesis: the same examples in every run; `HYPOTHESIS_PROFILE=explore` looks for new ones, for long."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("evenkeel", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "evenkeel"))
