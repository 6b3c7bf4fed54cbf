import pytest
from tier_contract import TierContract, make_node

from generator.tiers.base import NullTier, TierFull
from protocol.tiers import Tier


class TestNullTier(TierContract):
    def open_tier(self, folder):
        return NullTier(Tier.DISK)

    def test_it_refuses_every_copy(self, tier):
        with pytest.raises(TierFull, match="no disk tier"), tier.writing(make_node(0), None):
            pass
        assert tier.highest_stamp == 0
