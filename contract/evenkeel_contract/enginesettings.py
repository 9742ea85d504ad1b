"""Settings of the plug-ins: environment variables and the name of the schedule policy.

The operator and `evenkeel up` write them, the plug-in reads them. They are variables because SGLang passes only its
own flags to its scheduler processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from evenkeel_fairshare.replica.deficit import Rejoin

from evenkeel_contract.queueorder import DEFAULT_ORDER, OnMismatch, RequestOrder

QUANTUM_VARIABLE: Final = "EVENKEEL_CLIENT_QUANTUM"
INPUT_WEIGHT_VARIABLE: Final = "EVENKEEL_INPUT_TOKEN_WEIGHT"
OUTPUT_WEIGHT_VARIABLE: Final = "EVENKEEL_OUTPUT_TOKEN_WEIGHT"
KV_TIME_VARIABLE: Final = "EVENKEEL_KV_TIME"
REJOIN_VARIABLE: Final = "EVENKEEL_REJOIN"
ORDER_VARIABLE: Final = "EVENKEEL_ORDER"
WARMUP_VARIABLE: Final = "EVENKEEL_WARMUP_S"
ISOLATION_VARIABLE: Final = "EVENKEEL_ISOLATION"
REPORTS_PORT_VARIABLE: Final = "EVENKEEL_REPORTS_PORT"
REPORTS_HOST_VARIABLE: Final = "EVENKEEL_REPORTS_HOST"
POLICY_VARIABLE: Final = "EVENKEEL_REPLICA_POLICY"
"""The policy inside vLLM, by its name in the API. SGLang has a flag for it."""
INCARNATION_VARIABLE: Final = "EVENKEEL_INCARNATION"
ON_MISMATCH_VARIABLE: Final = "EVENKEEL_ON_MISMATCH"

OFF: Final = "Off"
"""Value of `EVENKEEL_ISOLATION`: prefill always goes first."""
ISOLATION: Final = 0.5
AUTO: Final = "Auto"
"""Value of `EVENKEEL_CLIENT_QUANTUM`: the replica measures its service."""
LOOPBACK: Final = "127.0.0.1"
WARMUP_S: Final = 3.0
"""Seconds. All routers find a new replica within two seconds of each other, and so do its clients."""
REJOINS: Final = tuple(one.value for one in Rejoin)
_UPSTREAM: Final = frozenset({"fcfs", "lpm", "hrrn"})
"""Names of SGLang's own policies."""


def schedule_policy_flag(replica_policy: str) -> str:
    """The value of SGLang's `--schedule-policy` for a policy of the API, such as `dlpm` for `DLPM`.

    SGLang's own FCFS, LPM and HRRN keep no accounts, so Evenkeel's versions have different names.
    """
    name = replica_policy.lower()
    return f"evenkeel-{name}" if name in _UPSTREAM else name


class EngineSettingsError(ValueError):
    """An invalid variable; the message names it and its valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Scheduling settings of one engine. Raises `EngineSettingsError`."""

    client_quantum: float | None = None
    """Q^u, weighted tokens. None: a share of a second of the measured service."""
    input_token_weight: float = 1.0
    output_token_weight: float = 2.0
    kv_time: float = 0.0
    """Weighted tokens for 1000 KV tokens held while one output token is made (R14)."""
    rejoin: str = "KeepDebt"
    order: RequestOrder = DEFAULT_ORDER
    """DLPM: which of the requests that it may admit goes first."""
    warmup_s: float = WARMUP_S
    """DLPM: seconds for which a new replica defers refills. 0: never, as in the paper."""
    isolation: float | None = ISOLATION
    """Divide engine time among clients whose requests run (R13). The least speed of a client beside a large batch, as a part of its
    speed alone times its share; 0: no such bound. None: prefill always goes first, as with a policy without accounts."""
    reports_port: int | None = None
    """Port for reports; None disables them."""
    reports_host: str = LOOPBACK
    """Address for reports of vLLM. SGLang reports at the address of its HTTP server."""
    incarnation: str = ""
    """Incarnation of the process, for tests; empty: a new one."""
    on_mismatch: OnMismatch = OnMismatch.GATE
    """What the engine does if the plug-in does not fit SGLang. Without `reports_port` it is as `REFUSE`: no router would know."""

    def __post_init__(self) -> None:
        for variable, value in (
            (QUANTUM_VARIABLE, self.client_quantum),
            (INPUT_WEIGHT_VARIABLE, self.input_token_weight),
            (OUTPUT_WEIGHT_VARIABLE, self.output_token_weight),
        ):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise EngineSettingsError(f"{variable} is {value}; it must be a positive number")
        for variable, value, unit in (
            (KV_TIME_VARIABLE, self.kv_time, "a number"),
            (WARMUP_VARIABLE, self.warmup_s, "a number of seconds"),
            (ISOLATION_VARIABLE, self.isolation, "Off or a number"),
        ):
            if value is not None and not 0 <= value < math.inf:
                raise EngineSettingsError(f"{variable} is {value}; it must be {unit}, 0 or more")
        if self.rejoin not in REJOINS:
            raise EngineSettingsError(
                f"{REJOIN_VARIABLE} is {self.rejoin!r}; it must be one of {', '.join(REJOINS)}"
            )
        if self.reports_port is not None and not 0 <= self.reports_port < 65536:
            raise EngineSettingsError(
                f"{REPORTS_PORT_VARIABLE} is {self.reports_port}; it must be a port, 0 to 65535"
            )

    def to_environment(self) -> dict[str, str]:
        """The variables that `from_environment` reads."""
        environment = {
            QUANTUM_VARIABLE: AUTO if self.client_quantum is None else repr(self.client_quantum),
            INPUT_WEIGHT_VARIABLE: repr(self.input_token_weight),
            OUTPUT_WEIGHT_VARIABLE: repr(self.output_token_weight),
            REJOIN_VARIABLE: self.rejoin,
        }
        if self.kv_time:
            environment[KV_TIME_VARIABLE] = repr(self.kv_time)
        if self.order is not DEFAULT_ORDER:  # older engines do not know it
            environment[ORDER_VARIABLE] = self.order.value
        if self.warmup_s != WARMUP_S:
            environment[WARMUP_VARIABLE] = repr(self.warmup_s)
        if self.isolation != ISOLATION:
            environment[ISOLATION_VARIABLE] = (
                OFF if self.isolation is None else repr(self.isolation)
            )
        if self.reports_port is not None:
            environment[REPORTS_PORT_VARIABLE] = str(self.reports_port)
        if self.reports_host != LOOPBACK:
            environment[REPORTS_HOST_VARIABLE] = self.reports_host
        if self.incarnation:
            environment[INCARNATION_VARIABLE] = self.incarnation
        if self.on_mismatch is not OnMismatch.GATE:
            environment[ON_MISMATCH_VARIABLE] = self.on_mismatch.value
        return environment

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> EngineSettings:
        """Read the variables; absent or empty ones keep their defaults."""
        defaults = cls()
        port = environment.get(REPORTS_PORT_VARIABLE, "")
        return cls(
            client_quantum=_quantum(environment),
            input_token_weight=_number(
                environment, INPUT_WEIGHT_VARIABLE, defaults.input_token_weight
            ),
            output_token_weight=_number(
                environment, OUTPUT_WEIGHT_VARIABLE, defaults.output_token_weight
            ),
            kv_time=_number(environment, KV_TIME_VARIABLE, defaults.kv_time),
            rejoin=environment.get(REJOIN_VARIABLE) or defaults.rejoin,
            order=_choice(environment, ORDER_VARIABLE, defaults.order),
            warmup_s=_number(environment, WARMUP_VARIABLE, defaults.warmup_s),
            isolation=None
            if environment.get(ISOLATION_VARIABLE) == OFF
            else _number(environment, ISOLATION_VARIABLE, ISOLATION),
            reports_port=int(_number(environment, REPORTS_PORT_VARIABLE, 0)) if port else None,
            reports_host=environment.get(REPORTS_HOST_VARIABLE) or defaults.reports_host,
            incarnation=environment.get(INCARNATION_VARIABLE, ""),
            on_mismatch=_choice(environment, ON_MISMATCH_VARIABLE, defaults.on_mismatch),
        )


def _quantum(environment: Mapping[str, str]) -> float | None:
    text = environment.get(QUANTUM_VARIABLE) or AUTO
    return None if text == AUTO else _number(environment, QUANTUM_VARIABLE, 0.0)


_Choice = TypeVar("_Choice", bound=Enum)


def _choice(environment: Mapping[str, str], variable: str, default: _Choice) -> _Choice:
    text = environment.get(variable) or default.value
    choices = {one.value: one for one in type(default)}
    if text not in choices:
        raise EngineSettingsError(f"{variable} is {text!r}; it must be {' or '.join(choices)}")
    return choices[text]


def _number(environment: Mapping[str, str], variable: str, default: float) -> float:
    text = environment.get(variable) or None
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise EngineSettingsError(f"{variable} is {text!r}; it must be a number") from None
