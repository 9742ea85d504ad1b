"""Values of users, written so that a template language reads them as plain text. Pure.

Every value of a spec that a template language will read goes through `literal`. Names and numbers that the contract checks
need no such step, nor do values that are data of a template, such as the labels that `{{ $labels.tenant }}` prints.
"""

from __future__ import annotations

from enum import Enum


class Language(Enum):
    """Template languages that read generated objects."""

    GO_TEMPLATE = "Go template"
    """Labels and annotations of Prometheus alerts. An invalid template makes Prometheus refuse all rule files, and
    `{{ query "…" }}` reads any series."""
    POD_ARGUMENT = "pod argument"
    """Arguments and variables of containers: Kubernetes replaces `$(NAME)` by a variable of the container."""


def literal(text: str, language: Language) -> str:
    """A template whose result is `text`."""
    if language is Language.POD_ARGUMENT:
        return text.replace("$", "$$")
    # From left to right, so no `{` of the text joins one of the action: `{{{` becomes the action and one `{`.
    return text.replace("{{", '{{"{{"}}')
