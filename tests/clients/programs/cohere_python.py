"""Cohere's client against a router: the order of a ranking, and its own exceptions.

Runs in the environment of the programs. Arguments: address, API key, model. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import cohere

URL, KEY, MODEL = sys.argv[1:]
QUERY = "How deep is the blue sea?"
DOCUMENTS = ["The sea has fish.", "A train leaves at noon.", "How deep the blue sea is, they know."]


def ranked(key: str = KEY, model: str = MODEL, **options: Any) -> Any:
    client = cohere.ClientV2(api_key=key, base_url=URL)
    given = {"query": QUERY, "documents": DOCUMENTS, "top_n": 2, **options}
    return client.rerank(model=model, **given)


def error(**options: Any) -> str:
    """Name of the exception that the client raises."""
    try:
        return f"an answer: {ranked(**options)}"
    except cohere.core.ApiError as raised:
        return type(raised).__name__


order = [one.index for one in ranked().results]
errors = [error(key="sk-unknown"), error(model="another"), error(documents=[])]
print(json.dumps({"order": order, "errors": errors}))
