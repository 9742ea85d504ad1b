"""Which tokenizer a router uses when replicas report different ones. Pure.

While a rollout changes the model, replicas differ. The matches at the other replicas are wrong then, which costs cache
hits and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def most_reported(digests: Mapping[str, str], current: str) -> str:
    """The digest that most replicas report; of several the current one, else the smallest. Empty: there is none.

    `digests` is by replica.
    """
    counts = Counter(digests.values())
    if not counts:
        return ""
    most = max(counts.values())
    first = [digest for digest, count in counts.items() if count == most]
    return current if current in first else min(first)
