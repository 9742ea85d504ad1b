"""Hypothesis: `HYPOTHESIS_PROFILE` is `ci` (the default), `quick`, `nightly` or `mutation`."""

from __future__ import annotations

import os

from tests.support.examples import load_profile

load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
