"""The replica policy that an engine's settings describe, for the plug-ins of SGLang and vLLM."""

from __future__ import annotations

from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules, Rejoin
from evenkeel_fairshare.replica.order import ORDERS
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy


def policy_of(name: str, settings: EngineSettings) -> tuple[ReplicaPolicy, Accounts]:
    """The replica policy `name`, and accounts with the same prices."""
    cost = LinearCost(settings.input_token_weight, settings.output_token_weight, settings.kv_time)
    config = ReplicaPolicyConfig(
        cost=cost,
        deficits=DeficitRules(quantum=settings.client_quantum, rejoin=Rejoin(settings.rejoin)),
        warmup_s=settings.warmup_s,
        order=ORDERS[settings.order.value],
    )
    return make_policy(name, config), Accounts(cost)
