"""The settings of a simulated replica: one dataclass, and the command line that fills it.

Flags are named as SGLang's where it has one. Nothing is read from the environment.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

from evenkeel_contract.enginesettings import AUTO, ISOLATION, WARMUP_S
from evenkeel_contract.kvevents import KEPT_BATCHES
from evenkeel_contract.names import ENGINE_PORT, KV_EVENTS_PORT, KV_REPLAY_PORT, REPORTS_PORT
from evenkeel_contract.queueorder import DEFAULT_ORDER, IsolationSetting, RequestOrder
from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules, Rejoin
from evenkeel_fairshare.replica.order import ORDERS
from evenkeel_fairshare.replica.registry import POLICIES, ReplicaPolicyConfig, make_policy

from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.profiles import PROFILES, CostProfile, ProfileError, decode_profile
from evenkeel_simulator.server.bodies import BadRequest

DEFAULT_PROFILE: Final = "a10g-llama2-7b"
DEFAULT_ADAPTERS_PER_BATCH: Final = 8  # SGLang's
LEAST_POOL_TOKENS: Final = 64
"""A smaller pool cannot hold a short prompt, its answer and SGLang's reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One simulated replica. Raises `ValueError` naming the invalid field."""

    model: str
    """The served name. Like SGLang, the replica answers requests for any other name too."""
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters. Requests choose one as `model:adapter`, or by its name in `lora_path` and as the model."""
    host: str = "127.0.0.1"
    port: int = ENGINE_PORT
    """HTTP. 0, here and below: the system chooses."""
    kv_events_port: int | None = None
    """Port for KV events; None: none are published (SGLang's default)."""
    kv_replay_port: int = 0
    kv_kept_batches: int = KEPT_BATCHES
    """Batches of KV events that are kept for replay (SGLang's `buffer_steps`)."""
    reports_port: int | None = None
    """Port for reports; None: no reports."""
    api_key: str | None = None
    """Bearer key that every request needs, except probes and metrics."""
    replica_policy: str = "DLPM"
    client_quantum: float | None = None
    """Q^u, weighted tokens. None: a share of a second of the measured service."""
    input_token_weight: float = 1.0
    output_token_weight: float = 2.0
    kv_time: float = 0.0
    """Weighted tokens for 1000 KV tokens held while one output token is made."""
    rejoin: Rejoin = Rejoin.KEEP_DEBT
    order: RequestOrder = DEFAULT_ORDER
    profile: CostProfile = field(default_factory=lambda: PROFILES[DEFAULT_PROFILE])
    kv_tokens: int | None = None
    """The KV pool; None: the profile's."""
    page_size: int = 16
    context_length: int | None = None
    """Longest input and output together; None: as long as the pool allows."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """How it batches; the `kv_tokens` above replaces its own."""
    speed: float = 1.0
    """Engine seconds per second of the wall clock."""
    cache_report: bool = True
    """Report `cached_tokens` in OpenAI usage (`--enable-cache-report`); null otherwise."""
    max_body_bytes: int = 64 * 1024 * 1024
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Unique to the process; part of every report."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model must not be empty")
        if self.replica_policy not in POLICIES:
            raise ValueError(f"replica_policy must be one of {', '.join(POLICIES)}")
        for name in ("client_quantum", "input_token_weight", "output_token_weight", "speed"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}, must be positive and finite")
        if not 0 <= self.kv_time < float("inf"):
            raise ValueError(f"kv_time is {self.kv_time}, must be at least 0 and finite")
        for name in (
            "kv_kept_batches",
            "kv_tokens",
            "page_size",
            "context_length",
            "max_body_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, must be at least 1")
        if self.pool_tokens < LEAST_POOL_TOKENS:
            raise ValueError(
                f"kv_tokens is {self.pool_tokens}, must be at least {LEAST_POOL_TOKENS}"
            )

    @property
    def pool_tokens(self) -> int:
        """Size of the KV pool in tokens."""
        return self.kv_tokens or self.engine.kv_tokens or self.profile.kv_tokens

    @property
    def context_tokens(self) -> int:
        """Longest input and output together that a request may ask for."""
        return self.context_length or self.pool_tokens

    def adapter_of(self, model: str, lora_path: str | None) -> str | None:
        """The adapter of a request. Raises `BadRequest` for an unknown one, in SGLang's words.

        As in SGLang, a model's name may have any words before the colon. Unlike SGLang, it may also be the adapter's name alone.
        """
        is_base = model == self.model
        given = model.removeprefix(f"{self.model}:")
        named = given if given in self.adapters else model.partition(":")[2].strip()
        adapter = (None if is_base else named) or lora_path
        if not adapter or adapter in self.adapters:
            return adapter or None
        if not self.adapters:
            raise BadRequest(
                f"LoRA adapter '{adapter}' was requested, but LoRA is not enabled. Please launch the server with "
                "--enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
            )
        raise BadRequest(f"Got LoRA adapter that has never been loaded: {adapter}")

    @property
    def engine_config(self) -> EngineConfig:
        """How the engine batches, with the pool of `pool_tokens`."""
        return replace(self.engine, kv_tokens=self.pool_tokens)

    @property
    def cost(self) -> Cost:
        """What service costs."""
        return LinearCost(self.input_token_weight, self.output_token_weight, self.kv_time)

    def make_policy(self) -> ReplicaPolicy:
        """A fresh policy, as the engine runs it."""
        deficits = DeficitRules(quantum=self.client_quantum, rejoin=self.rejoin)
        return make_policy(
            self.replica_policy,
            ReplicaPolicyConfig(
                cost=self.cost,
                deficits=deficits,
                warmup_s=WARMUP_S,
                order=ORDERS[self.order.value],
            ),
        )


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Settings from the command line; exits with status 2 and a message if an argument is invalid."""
    parser = argument_parser()
    try:
        return _settings(parser, arguments)
    except ValueError as error:
        parser.error(str(error))


def argument_faults(arguments: Sequence[str]) -> Iterator[tuple[int | None, str]]:
    """Faults of `arguments`, one `--flag=value` each, as (index, message).

    The index is None if each argument is valid alone, but not all together.
    """
    parser = argument_parser(_Checker, add_help=False)

    def fault(some: Sequence[str]) -> str | None:
        try:
            _settings(parser, ["--model=any", *some])
        except ValueError as error:
            return str(error)
        return None

    together = fault(arguments)
    if together is None:  # one argument alone may be invalid: a tiny profile with a larger pool
        return
    alone = [(index, fault([argument])) for index, argument in enumerate(arguments)]
    found = [(index, message) for index, message in alone if message is not None]
    if found:
        yield from found
    else:
        yield None, together


class _Checker(argparse.ArgumentParser):
    """A parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _settings(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Settings:
    """Raises `ValueError` for invalid values."""
    flags = vars(parser.parse_args(arguments))
    engine = EngineConfig(
        admission=flags.pop("admission"),
        max_running=flags.pop("max_running_requests"),
        prefill_tokens=flags.pop("chunked_prefill_size") or None,
        mixed=flags.pop("enable_mixed_chunk"),
        adapters_per_batch=flags.pop("max_loras_per_batch"),
        adapter_load_ms=flags.pop("adapter_load_ms"),
        isolation=flags.pop("isolation"),
    )
    flags.pop("enable_lora", None)  # as in SGLang, adapters enable it
    flags["adapters"] = tuple(path.partition("=")[0] for path in flags.pop("lora_paths", ()))
    if not flags["adapters"]:
        engine = replace(engine, adapters_per_batch=None)
    return Settings(engine=engine, **flags)


def argument_parser(
    kind: type[argparse.ArgumentParser] = argparse.ArgumentParser, *, add_help: bool = True
) -> argparse.ArgumentParser:
    """The parser of all flags, of the given class."""
    parser = kind(
        prog="python -m evenkeel_simulator.server",
        description="A simulated SGLang replica on the wall clock.",
        argument_default=argparse.SUPPRESS,  # the defaults are those of Settings
        add_help=add_help,
        allow_abbrev=False,  # an abbreviation must not set a flag that only Evenkeel may set
    )
    for add in (_add_network, _add_scheduling, _add_engine, _add_adapters):
        add(parser)
    return parser


def _add_network(parser: argparse.ArgumentParser) -> None:
    network = parser.add_argument_group("network (port 0: the system chooses)")
    network.add_argument("--model", required=True, help="served model name")
    network.add_argument("--host", metavar="ADDRESS")
    network.add_argument("--port", type=int, help=f"HTTP, {ENGINE_PORT} by default")
    network.add_argument(
        "--kv-events-port", type=int, help=f"publish KV events, usually on {KV_EVENTS_PORT}"
    )
    network.add_argument(
        "--kv-replay-port", type=int, help=f"replay KV events, usually on {KV_REPLAY_PORT}"
    )
    network.add_argument(
        "--kv-kept-batches", type=int, help=f"batches kept for replays, {KEPT_BATCHES} by default"
    )
    network.add_argument(
        "--reports-port", type=int, help=f"reports per client, usually on {REPORTS_PORT}"
    )
    network.add_argument("--api-key", help="bearer key that requests must show")


def _add_scheduling(parser: argparse.ArgumentParser) -> None:
    policy = parser.add_argument_group("scheduling")
    policy.add_argument("--replica-policy", choices=list(POLICIES))
    policy.add_argument(
        "--client-quantum",
        type=_quantum,
        metavar="TOKENS",
        help="Q^u of DLPM, in weighted tokens; Auto by default",
    )
    policy.add_argument("--input-token-weight", type=float, help="1 by default")
    policy.add_argument("--output-token-weight", type=float, help="2 by default")
    policy.add_argument(
        "--kv-time",
        type=float,
        help="cost of 1000 KV tokens held during an output token; default 0",
    )
    policy.add_argument(
        "--rejoin",
        type=Rejoin,
        help="deficit of a client that returns after being idle: KeepDebt or Paper",
    )
    policy.add_argument(
        "--order",
        type=RequestOrder,
        help="DLPM: which of the requests that it may admit goes first: MatchOctaves (default) or LongestMatch",
    )
    policy.add_argument(
        "--isolation",
        type=_isolation,
        default=EngineConfig().isolation,
        metavar="PERCENT",
        help="how far other clients may slow a client whose requests run, or Off; "
        f"{ISOLATION:.0%}% by default",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    defaults = EngineConfig()
    engine = parser.add_argument_group("engine")
    engine.add_argument("--profile", type=_profile, help=f"{', '.join(PROFILES)}, or a JSON file")
    engine.add_argument("--kv-tokens", type=int, help="KV pool; default: the profile's")
    engine.add_argument("--page-size", type=int, help="tokens per page, 16 by default")
    engine.add_argument("--context-length", type=int, help="default: the KV pool")
    engine.add_argument("--speed", type=float, help="engine seconds per second, 1 by default")
    engine.add_argument("--admission", type=AdmissionRule, default=defaults.admission)
    engine.add_argument("--max-running-requests", type=int, default=defaults.max_running)
    engine.add_argument("--chunked-prefill-size", type=int, default=defaults.prefill_tokens)
    engine.add_argument("--enable-mixed-chunk", action="store_true", default=defaults.mixed)


def _add_adapters(parser: argparse.ArgumentParser) -> None:
    adapters = parser.add_argument_group("LoRA adapters")
    adapters.add_argument("--enable-lora", action="store_true", help="adapters enable it, too")
    adapters.add_argument(
        "--lora-paths", nargs="*", metavar="NAME=PATH", help="adapters; the simulator reads no file"
    )
    adapters.add_argument(
        "--max-loras-per-batch",
        type=int,
        default=DEFAULT_ADAPTERS_PER_BATCH,
        help=f"adapters in one batch, the model without an adapter included; {DEFAULT_ADAPTERS_PER_BATCH} by default",
    )
    adapters.add_argument(
        "--adapter-load-ms",
        type=float,
        default=EngineConfig().adapter_load_ms,
        help=f"time to load an adapter, {EngineConfig().adapter_load_ms:g} by default",
    )


def _quantum(text: str) -> float | None:
    return None if text == AUTO else float(text)


def _isolation(text: str) -> float | None:
    return IsolationSetting.from_plain(text).share


def _profile(text: str) -> CostProfile:
    if text in PROFILES:
        return PROFILES[text]
    try:
        return decode_profile(Path(text).read_bytes())
    except OSError as error:
        names = ", ".join(PROFILES)
        message = f"{text!r} is neither one of {names} nor a file that can be read"
        raise argparse.ArgumentTypeError(message) from error
    except ProfileError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error
