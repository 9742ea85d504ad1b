"""Identities, weights and shares."""

import pytest
from evenkeel_fairshare.tenancy import Identity, Tenancy, TenantWeights, Weights

TENANCY = Tenancy(
    {
        ("ml", "search"): TenantWeights(weight=4, clients={"chat": 3, "batch": 1}),
        ("ml", "ads"): TenantWeights(weight=2, default_client_weight=5),
    }
)


@pytest.mark.parametrize(
    ("identity", "want_key", "want_tenant"),
    [
        (Identity("ml", "search", "chat"), "ml/search/chat", "ml/search"),
        (Identity("a/b", "~c", "ö%"), "a%2Fb/%7Ec/%C3%B6%25", "a%2Fb/%7Ec"),
    ],
)
def test_an_identity_is_spelled_with_its_parts_escaped(
    identity: Identity, want_key: str, want_tenant: str
) -> None:
    assert str(identity) == want_key
    assert identity.tenant_key == want_tenant


def test_identities_with_slashes_are_never_confused() -> None:
    assert str(Identity("a/b", "c", "d")) != str(Identity("a", "b/c", "d"))


@pytest.mark.parametrize(
    ("identity", "want_weights"),
    [
        (Identity("ml", "search", "chat"), Weights(4, 3)),
        (Identity("ml", "search", "other"), Weights(4, 1)),
        (Identity("ml", "ads", "anyone"), Weights(2, 5)),
        (Identity("ml", "unheard-of", "chat"), Weights(1, 1)),
        (Identity("elsewhere", "search", "chat"), Weights(1, 1)),
    ],
)
def test_weights_come_from_the_tenant_and_its_named_clients(
    identity: Identity, want_weights: Weights
) -> None:
    assert TENANCY.weights(identity) == want_weights


def test_without_configuration_all_clients_weigh_one() -> None:
    assert Tenancy().weights(Identity("a", "b", "c")) == Weights(1.0, 1.0)


def test_the_flat_weight_is_the_product_of_both_levels() -> None:
    assert TENANCY.weights(Identity("ml", "search", "chat")).fleet == 12


def test_a_tenant_with_one_client_is_owed_what_a_tenant_with_fifty_is() -> None:
    crowd = [Identity("ml", "crowd", str(number)) for number in range(50)]
    single = Identity("ml", "single", "only")
    shares = Tenancy().shares([*crowd, single])
    assert shares[single] == pytest.approx(0.5)
    assert {round(shares[member], 9) for member in crowd} == {0.01}


def test_shares_follow_both_levels_of_weights_and_add_up() -> None:
    chat, batch = Identity("ml", "search", "chat"), Identity("ml", "search", "batch")
    ads = Identity("ml", "ads", "any")
    shares = TENANCY.shares([chat, ads, batch])
    assert shares == pytest.approx({chat: 4 / 6 * 3 / 4, batch: 4 / 6 * 1 / 4, ads: 2 / 6})
    assert TENANCY.shares([batch]) == {batch: 1.0}
    assert TENANCY.shares([]) == {}


def test_the_value_does_not_follow_what_it_was_made_of() -> None:
    clients = {"chat": 3.0}
    tenants = {("ml", "search"): TenantWeights(clients=clients)}
    tenancy = Tenancy(tenants)
    clients["chat"] = 7.0
    tenants.clear()
    assert tenancy.weights(Identity("ml", "search", "chat")) == Weights(1.0, 3.0)


def test_every_weight_that_is_not_positive_is_named() -> None:
    with pytest.raises(ValueError) as fault:
        Tenancy(
            {
                ("ml", "a"): TenantWeights(weight=0, default_client_weight=-1),
                ("ml", "b"): TenantWeights(clients={"x": float("nan"), "y": 2}),
            }
        )
    assert str(fault.value) == (
        "tenant ml/a: weight is 0, must be positive; "
        "tenant ml/a: default client weight is -1, must be positive; "
        "client ml/b/x: weight is nan, must be positive"
    )
