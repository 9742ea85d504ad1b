"""Weights and shares."""

from math import inf

import pytest
from evenkeel_fairshare.tenancy import ClientWeight, divided, shares

TENANTS = {"ml/search": 4.0, "ml/ads": 2.0}
CLIENTS = {"ml/search/chat": 3.0, "ml/search/batch": 1.0, "ml/ads/any": 5.0}


def test_the_flat_weight_is_the_product_of_both_levels() -> None:
    assert ClientWeight(4, 3).fleet == 12
    assert ClientWeight().fleet == 1


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


def test_without_limits_an_amount_is_divided_by_shares() -> None:
    found = divided(60.0, dict.fromkeys(CLIENTS, inf), CLIENTS.__getitem__, TENANTS.__getitem__)
    assert found == pytest.approx(
        {
            name: 60 * share
            for name, share in shares(CLIENTS, CLIENTS.__getitem__, TENANTS.__getitem__).items()
        }
    )


def test_what_a_client_cannot_take_stays_in_its_tenant() -> None:
    most = {"ml/search/chat": inf, "ml/search/batch": 5.0, "ml/ads/any": inf}
    found = divided(60.0, most, CLIENTS.__getitem__, TENANTS.__getitem__)
    assert found == pytest.approx(
        {"ml/search/chat": 35.0, "ml/search/batch": 5.0, "ml/ads/any": 20.0}
    )


def test_what_a_tenant_cannot_take_goes_to_the_other_tenants() -> None:
    most = {"ml/search/chat": inf, "ml/search/batch": 5.0, "ml/ads/any": 6.0}
    found = divided(60.0, most, CLIENTS.__getitem__, TENANTS.__getitem__)
    assert found == pytest.approx(
        {"ml/search/chat": 49.0, "ml/search/batch": 5.0, "ml/ads/any": 6.0}
    )


def test_no_more_is_divided_than_all_can_take() -> None:
    most = {"ml/search/chat": 1.0, "ml/ads/any": 2.0}
    assert divided(60.0, most, CLIENTS.__getitem__, TENANTS.__getitem__) == most
    assert divided(60.0, {}, CLIENTS.__getitem__, TENANTS.__getitem__) == {}


def test_members_are_filled_in_the_order_of_limit_over_weight() -> None:
    weights = {"ml/ads/heavy": 4.0, "ml/ads/light": 1.0}
    most = {"ml/ads/heavy": 40.0, "ml/ads/light": 20.0}
    found = divided(55.0, most, weights.__getitem__, lambda _: 1.0)
    assert found == pytest.approx({"ml/ads/heavy": 40.0, "ml/ads/light": 15.0})
