"""The LoRA adapters in the memory of one engine: a fixed number of slots, as SGLang's `--max-loras-per-batch`.

Requests of one batch use at most as many adapters as there are slots; the model without an adapter counts as one. An adapter that
no running request uses stays in its slot until another one needs the slot; the least recently used one goes first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection

Adapter = str | None
"""Name of a LoRA adapter; None: the model without an adapter."""


class AdapterSlots:
    """Which adapters are loaded, and which of them requests of the batch use."""

    def __init__(self, slots: int | None) -> None:
        """Make `slots` empty slots. None: no limit, and no adapter is ever loaded."""
        self._slots = slots
        self._loaded: OrderedDict[Adapter, None] = OrderedDict()
        self._used: Counter[Adapter] = Counter()

    @property
    def loaded(self) -> Collection[Adapter]:
        """The loaded adapters, the least recently used one first."""
        return self._loaded.keys()

    def fits(self, adapter: Adapter) -> bool:
        """Whether a request with this adapter may join the batch."""
        return self._slots is None or adapter in self._used or len(self._used) < self._slots

    def enter(self, adapter: Adapter) -> bool:
        """A request with a fitting adapter joins the batch. Returns whether the adapter has to be loaded."""
        if self._slots is None:
            return False
        is_new = adapter not in self._loaded
        if is_new and len(self._loaded) >= self._slots:
            idle = next(loaded for loaded in self._loaded if loaded not in self._used)
            del self._loaded[idle]
        self._loaded[adapter] = None
        self._loaded.move_to_end(adapter)
        self._used[adapter] += 1
        return is_new and adapter is not None

    def leave(self, adapter: Adapter) -> None:
        """A request with this adapter left the batch."""
        if self._slots is None:
            return
        self._used[adapter] -= 1
        if not self._used[adapter]:
            del self._used[adapter]
