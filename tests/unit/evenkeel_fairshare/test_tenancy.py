"""Weights and shares."""

import pytest
from evenkeel_fairshare.tenancy import Weights, shares

TENANTS = {"ml/search": 4.0, "ml/ads": 2.0}
CLIENTS = {"ml/search/chat": 3.0, "ml/search/batch": 1.0, "ml/ads/any": 5.0}


def test_the_flat_weight_is_the_product_of_both_levels() -> None:
    assert Weights(4, 3).fleet == 12
    assert Weights().fleet == 1


def test_a_tenant_with_one_client_is_owed_what_a_tenant_with_fifty_is() -> None:
    crowd = [f"ml/crowd/{number}" for number in range(50)]
    found = shares([*crowd, "ml/single/only"], lambda _: 1.0, lambda _: 1.0)
    assert found["ml/single/only"] == pytest.approx(0.5)
    assert {round(found[member], 9) for member in crowd} == {0.01}


def test_shares_follow_both_levels_of_weights_and_add_up() -> None:
    found = shares(CLIENTS, CLIENTS.__getitem__, TENANTS.__getitem__)
    want = {"ml/search/chat": 4 / 6 * 3 / 4, "ml/search/batch": 4 / 6 * 1 / 4, "ml/ads/any": 2 / 6}
    assert found == pytest.approx(want)


def test_a_single_backlogged_client_is_owed_everything() -> None:
    one = ["ml/search/batch"]
    assert shares(one, CLIENTS.__getitem__, TENANTS.__getitem__) == {"ml/search/batch": 1.0}
    assert shares([], CLIENTS.__getitem__, TENANTS.__getitem__) == {}
