"""Which training rows a run stores."""

import pytest

from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.training.sink import keeps

UIDS = [f"uid{place:04d}" for place in range(2000)]


def test_all_rows_are_kept_by_default():
    assert all(keeps(uid, TerminalReason.SUBMITTED, 1.0) for uid in UIDS)


def test_no_submitted_row_is_kept_at_zero_and_every_other_ending_is():
    assert not any(keeps(uid, TerminalReason.SUBMITTED, 0.0) for uid in UIDS)
    endings = [reason for reason in TerminalReason if reason is not TerminalReason.SUBMITTED]
    assert all(keeps(uid, reason, 0.0) for uid in UIDS[:10] for reason in endings)


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_a_fraction_is_a_share_of_uids_and_a_larger_one_keeps_the_smaller_ones_rows(fraction: float):
    kept = {uid for uid in UIDS if keeps(uid, TerminalReason.SUBMITTED, fraction)}
    assert abs(len(kept) / len(UIDS) - fraction) < 0.04
    assert all(keeps(uid, TerminalReason.SUBMITTED, fraction + 0.2) for uid in kept)
