"""Which of the replicas' ways to make tokens a router follows. Pure.

Place in the flow: what replicas tell → **most of them** → tokenizer. In a rollout that changes the model replicas
differ for a while; matches at those of the other kind are wrong then, which costs cache hits and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def followed(told: Mapping[str, str], current: str) -> str:
    """The digest that most replicas tell; of several the current one, else the smallest. Empty: nobody tells any.

    `told` is by replica.
    """
    counts = Counter(told.values())
    if not counts:
        return ""
    most = max(counts.values())
    first = [digest for digest, count in counts.items() if count == most]
    return current if current in first else min(first)
