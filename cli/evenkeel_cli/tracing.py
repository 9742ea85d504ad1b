"""The option `--tracing`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import typer
from evenkeel_contract.decode import salvage
from evenkeel_contract.tracingconfig import TracingConfig

EVERY_REQUEST: Final = 1_000_000
"""The sampling rate per million: on a laptop every request is traced."""


def traces_to(url: str | None) -> TracingConfig | None:
    """A trace of every request to the collector at `url`; raises `typer.BadParameter` if that is not possible."""
    if url is None:
        return None
    config, faults = salvage(
        TracingConfig, {"endpoint": url, "samplingRatePerMillion": EVERY_REQUEST}
    )
    if faults:
        raise typer.BadParameter(faults[0].message, param_hint="--tracing")
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise typer.BadParameter(
            "needs more packages; install them with: pip install 'evenkeel-llm[tracing]'",
            param_hint="--tracing",
        )
    return config
