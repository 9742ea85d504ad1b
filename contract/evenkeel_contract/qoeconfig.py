"""What routers expect of streams, and when they send tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from evenkeel_contract.values import Range


class Delivery(Enum):
    """When the router sends a streamed token on."""

    AS_GENERATED = "AsGenerated"  # at once
    PACED = "Paced"  # at the expected speed at most


@dataclass(frozen=True, slots=True, kw_only=True)
class QoeConfig:
    """What users expect of a streamed answer: its quality of experience (QoE) is measured against it."""

    expected_ttft_s: Annotated[float, Range(above=0, maximum=7 * 24 * 3600)] = 1.0
    """Time in which users expect the first token."""
    expected_itl_s: Annotated[float, Range(1e-9, 7 * 24 * 3600)] = 0.2
    """Time in which users read one token."""
    delivery: Delivery = Delivery.AS_GENERATED
    """When the router sends a token: at once (AsGenerated), or not before the previous one is read (Paced)."""
