"""Which requests make the engine load a LoRA adapter, and what the load costs.

The papers charge a request for the tokens that are computed for it. A load is such work: it takes time of the engine, the request
that needs it causes it, and later requests with the adapter get it free, like a cached prefix (design R10). So it is charged as
input, by a fixed number of tokens: times differ between tensor-parallel ranks, and their batches would too.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final

LOAD_TOKENS: Final = 256
"""Extend tokens that a load counts as: a GPU of 80 GB computes as many, for a model of 8 billion parameters, in the 16 ms of a load."""


class AdapterLoads:
    """The loads of one scheduler."""

    def __init__(self, loaded: Callable[[], Container[str]] = lambda: ()) -> None:
        """`loaded` returns the ids of the adapters in the engine's slots."""
        self._loaded = loaded
        self._coming: set[str] = set()

    def begin_pass(self) -> None:
        """The engine has loaded the adapters of the last batch."""
        self._coming.clear()

    def tokens(self, request: Any) -> int:
        """Tokens to charge for the load that an admitted request causes."""
        adapter = getattr(request, "lora_id", None)
        if adapter is None or adapter in self._coming or adapter in self._loaded():
            return 0
        self._coming.add(adapter)
        return LOAD_TOKENS
