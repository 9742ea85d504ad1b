"""The client key: the only data that a router passes to the engine's scheduler (design §4, end).

Grammar, one line of ASCII, at most `MAX_KEY_BYTES`:

    ek1 ; <namespace>/<tenant>/<client> ; w=<tenant weight>,<client weight>
        [ ; s=<seed> ] [ ; t=<tenant seed> ] [ ; f [ =<paid output> ] ]

Names are percent-escaped outside `A-Z a-z 0-9 . _ -`. Weights are integers from 1 to `MAX_WEIGHT`; the tenant's may have up to three decimals, from
`LEAST_WEIGHT`: a cell gives its tenants weights of its own (R21). Seeds are whole
numbers of weighted tokens (R5). `f` marks a retry that the fleet caused, such as a relocation: the client has already
paid its input, and as many output tokens as given (R11). A key has no blanks and its fields have this order, so each
key has exactly one encoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

MAX_KEY_BYTES: Final = 1024  # well below 8 KiB, the usual limit of HTTP servers for all headers
MAX_NAME_BYTES: Final = 253  # a Kubernetes name's limit, in UTF-8 before escaping
MAX_WEIGHT: Final = 1_000_000
LEAST_WEIGHT: Final = 0.001
MAX_SEED: Final = 2**53  # above it a float cannot represent every integer

_PREFIX: Final = "ek1"
_NAME: Final = r"(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+"
_WEIGHT: Final = r"(?:0|[1-9][0-9]{0,6})(?:\.[0-9]{1,3})?"
# No more digits than `MAX_WEIGHT` and `MAX_SEED` have: no header becomes a huge integer.
_KEY: Final = re.compile(
    rf"ek1;({_NAME})/({_NAME})/({_NAME});w=({_WEIGHT}),([1-9][0-9]{{0,6}})"
    r"(?:;s=(-?[1-9][0-9]{0,15}))?(?:;t=(-?[1-9][0-9]{0,15}))?(?:;(f)(?:=([1-9][0-9]{0,15}))?)?"
)


class ClientKeyError(ValueError):
    """An invalid client key; the message names the part."""


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The client of a request and its parameters for scheduling and charging."""

    namespace: str
    tenant: str
    client: str
    tenant_weight: float = 1
    """A whole number, or in thousandths: a cell among others has weights of its own (R21)."""
    client_weight: int = 1
    seed: int = 0
    """Initial deficit of the client at a replica that does not know it, in weighted tokens. Negative is debt."""
    tenant_seed: int = 0
    """Initial deficit of the tenant at a replica that does not know the tenant (R9), in weighted tokens."""
    retried_by_fleet: bool = False
    paid_output_tokens: int = 0
    """Output tokens of a retry that another replica has already computed and charged."""

    @property
    def tenant_identity(self) -> str:
        """`namespace/tenant`, each part escaped, so that it is unique."""
        return f"{_escape(self.namespace)}/{_escape(self.tenant)}"

    @property
    def identity(self) -> str:
        """`namespace/tenant/client`, each part escaped."""
        return f"{self.tenant_identity}/{_escape(self.client)}"

    def encode(self) -> str:
        """The key as text; raises `ClientKeyError`."""
        for part, name in (
            ("namespace", self.namespace),
            ("tenant", self.tenant),
            ("client", self.client),
        ):
            _check_name(part, name)
        for part, weight, least in (
            ("tenant weight", self.tenant_weight, LEAST_WEIGHT),
            ("client weight", self.client_weight, 1),
        ):
            if not least <= weight <= MAX_WEIGHT:
                raise ClientKeyError(f"{part} must be from {least} to {MAX_WEIGHT}, not {weight}")
        for part, amount in (("seed", self.seed), ("tenant seed", self.tenant_seed)):
            if abs(amount) > MAX_SEED:
                raise ClientKeyError(f"{part} must be from -{MAX_SEED} to {MAX_SEED}, not {amount}")
        if not 0 <= self.paid_output_tokens <= MAX_SEED * self.retried_by_fleet:
            raise ClientKeyError(
                f"paid output {self.paid_output_tokens} is only valid for a retry by the fleet"
            )
        seed = f";s={self.seed}" if self.seed else ""
        seed += f";t={self.tenant_seed}" if self.tenant_seed else ""
        retried = ";f" if self.retried_by_fleet else ""
        retried += f"={self.paid_output_tokens}" if self.paid_output_tokens else ""
        tenant_weight = f"{self.tenant_weight:.3f}".rstrip("0").rstrip(".")
        text = f"{_PREFIX};{self.identity};w={tenant_weight},{self.client_weight}{seed}{retried}"
        if len(text) > MAX_KEY_BYTES:
            raise ClientKeyError(f"key of {len(text)} bytes is longer than {MAX_KEY_BYTES}")
        return text


UNKNOWN: Final = ClientKey(namespace="-", tenant="-", client="unknown")
"""The client of all requests without a readable key at an engine, with weight 1 and no seed. They share the share of
one client. `-` is not a Kubernetes name, so this is not a real tenant."""


def decode(text: str) -> ClientKey:
    """Read a key; raises `ClientKeyError`. `decode(k.encode()) == k` for every valid key."""
    if len(text) > MAX_KEY_BYTES:
        raise ClientKeyError(f"key of {len(text)} bytes is longer than {MAX_KEY_BYTES}")
    if not text.startswith(f"{_PREFIX};"):
        raise ClientKeyError(f"not a client key of version {_PREFIX}")
    match = _KEY.fullmatch(text)
    if match is None:
        raise ClientKeyError("client key has an invalid format")
    *names, tenant_weight, client_weight, seed, tenant_seed, retried, paid = match.groups()
    namespace, tenant, client = names
    key = ClientKey(
        namespace=_unescape("namespace", namespace),
        tenant=_unescape("tenant", tenant),
        client=_unescape("client", client),
        tenant_weight=float(tenant_weight),
        client_weight=int(client_weight),
        seed=int(seed or 0),
        tenant_seed=int(tenant_seed or 0),
        retried_by_fleet=retried is not None,
        paid_output_tokens=int(paid or 0),
    )
    if key.encode() != text:  # one encoding: `%41` for `A` is refused
        raise ClientKeyError("client key is not in its canonical encoding")
    return key


def _escape(name: str) -> str:
    return quote(name, safe="").replace("~", "%7E")


def _unescape(part: str, text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise ClientKeyError(f"{part} is not UTF-8") from error


def _check_name(part: str, name: str) -> None:
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ClientKeyError(f"{part} is not encodable as UTF-8") from error
    if not 1 <= size_bytes <= MAX_NAME_BYTES:
        raise ClientKeyError(f"{part} has {size_bytes} bytes, not 1 to {MAX_NAME_BYTES}")
