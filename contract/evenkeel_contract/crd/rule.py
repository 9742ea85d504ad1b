"""One rule in CEL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SHORT_DURATION: Final = (  # each part is at most 126 years; CEL converts up to 292 years
    "'^(0*([0-9]{1,6}([.][0-9]+)?h|[0-5]?[0-9]{1,7}([.][0-9]+)?m|[0-3]?[0-9]{1,9}([.][0-9]+)?s|"
    "[0-3]?[0-9]{1,12}([.][0-9]+)?ms))+$'"
)
"""A text that CEL converts to a duration. Without this condition, another text would get a message about the conversion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of `x-kubernetes-validations`."""

    mirrors: str
    """The function in `validate`, the constraint or the scalar with the same check; `transition` if there is none."""
    rule: str
    """CEL: true if the value is valid; `self` is the value that the rule is attached to."""
    message: str
    """Names the field and the fix."""
    field: str | None = None
    """The invalid field below the value; None: the value itself."""
    message_expression: str | None = None
    """CEL that yields a message containing the value."""

    def to_plain(self) -> dict[str, str]:
        """The rule in the form that the API server reads."""
        plain = {"rule": self.rule, "message": self.message}
        if self.message_expression is not None:
            plain["messageExpression"] = self.message_expression
        if self.field is not None:
            plain["fieldPath"] = f".{self.field}"
        return plain


def on_field(field: str, problem: str, *, mirrors: str, rule: str) -> Rule:
    """A rule whose message begins with the name of the invalid field."""
    return Rule(mirrors=mirrors, rule=rule, message=f"{field} {problem}", field=field)
