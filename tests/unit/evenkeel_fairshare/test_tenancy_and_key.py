"""An identity is spelled the same in the algorithms and in the client key."""

import pytest
from evenkeel_contract.key import ClientKey
from evenkeel_fairshare.tenancy import Identity


@pytest.mark.parametrize("names", [("ml", "search", "chat"), ("a/b", "~c", "ö"), ("a", "b/c", "%")])
def test_an_identity_is_spelled_as_in_the_client_key(names: tuple[str, str, str]) -> None:
    identity, key = Identity(*names), ClientKey(*names)
    assert str(identity) == key.identity
    assert identity.tenant_key == key.tenant_identity
