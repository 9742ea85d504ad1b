"""One rule in CEL."""

from __future__ import annotations

from dataclasses import dataclass


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
