"""Further copies of blocks: vLLM keeps one for each of the requests that computed equal blocks at the same time."""

from __future__ import annotations

from collections import Counter


class Copies(Counter[int]):
    """Hash of a block → its copies beyond the first. No zeros."""

    def took(self, key: int) -> bool:
        """Take away a copy of a block; False if there is none but the first."""
        count = self.get(key, 0)
        if count > 1:
            self[key] = count - 1
        elif count:
            del self[key]
        return count > 0
