"""The rules of `validate` in CEL for values of a class, or with a constraint: durations, quantities, networks, addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from evenkeel_contract.crd.rule import SHORT_DURATION, Rule
from evenkeel_contract.values import Cidr, Duration, Quantity, Url

_PORT: Final = (
    "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
"""A port from 1 to 65535, as a pattern."""
# Without these conditions, a text that CEL cannot convert would get a message about the conversion.
_DURATION: Final = "'^([0-9]+([.][0-9]+)?(ms|s|m|h))+$'"


def unless_no_quantity(value: str, rule: str) -> str:
    """A condition of quantities that holds for other texts too: another check reports them."""
    return f"!isQuantity(string({value})) || ({rule})"


SCALAR_RULES: Final[Mapping[type, Sequence[Rule]]] = {
    Duration: (
        Rule(
            mirrors="Duration",
            rule=f"!self.matches({_DURATION}) || (self.matches({SHORT_DURATION}) && "
            "duration(self) > duration('0s') && duration(self) <= duration('876000h'))",
            message="must be above 0 and at most 876000h (100 years)",
        ),
    ),
    Quantity: (
        Rule(
            mirrors="Quantity",
            rule=unless_no_quantity(
                "self",
                "quantity(string(self)).isGreaterThan(quantity('0')) && "
                "quantity(string(self)).isLessThan(quantity('9223372036854775807'))",
            ),
            message="must be above 0 and below 2^63",
        ),
    ),
    Cidr: (
        Rule(
            mirrors="Cidr",
            rule="isIP(self) || (isCIDR(self) && cidr(self) == cidr(self).masked())",
            message="must be a network like 10.0.0.0/8, with zero bits after the prefix",
        ),
    ),
    Url: (
        Rule(
            mirrors="Url",
            rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && "
            # Go accepts nearly any host; `getHostname().matches` would have no cost bound. `int` of a long port is an error of CEL's.
            "self.matches('^[a-zA-Z]+://([^/?#@]*@)?([a-zA-Z0-9._-]+|[[][0-9a-fA-F:.]+[]])"
            f"(:({_PORT})?)?([/?][^#]*)?$')",
            message="must be an address like http://host:port or https://host:port",
        ),
    ),
}
"""Rules for values of a class, or with a constraint."""

BARE_URL: Final = Rule(
    mirrors="Url",
    rule="!isURL(self) || self.matches('^[^/?#@]*//[^/?#@]*/?[?]?$')",
    message="must end after host and port, such as https://host:port",
)
"""The rule of a bare `Url`, besides that of every `Url`."""
