"""What the algorithms default to is what a router is told by default."""

from evenkeel_contract.routerconfig import FleetPolicyName, PrefixConfig, SchedulingConfig
from evenkeel_fairshare.fleet.registry import POLICIES, FleetPolicyConfig
from evenkeel_fairshare.prefix.index import DEFAULT_BLOCK_BYTES, DEFAULT_MAX_BLOCKS


def test_the_index_and_the_blocks_default_alike() -> None:
    config = PrefixConfig()
    assert config.max_blocks == DEFAULT_MAX_BLOCKS
    assert config.text_block_bytes == DEFAULT_BLOCK_BYTES


def test_the_worker_quantum_defaults_alike() -> None:
    assert SchedulingConfig().worker_quantum == FleetPolicyConfig().worker_quantum


def test_the_registry_holds_the_policies_that_can_be_configured() -> None:
    assert set(POLICIES) == {name.value for name in FleetPolicyName}
