"""What ranks agree on around captures."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tsgraph.capture.agreement import digest_of, digest_of_recording, settle_plan
from tsgraph.keys import Batch, Mode, RankCounts, SlotKey
from tsgraph.testing.fakes import FakeRanks

KEY = SlotKey("default", 4)
COUNTS = RankCounts([8, 8], [4, 4], all_decode_or_idle=True)
PRINT_DIGEST = """
from tsgraph.capture.agreement import digest_of_recording
from tsgraph.keys import Batch, Mode, RankCounts, SlotKey
batch = Batch(4, 8, Mode.DECODE, "default", {"ids": 1, "lens": 2}, counts=RankCounts([8, 8], [4, 4], True))
print(digest_of_recording(SlotKey("default", 4), batch))
"""


def batch(**words):
    """A recorded batch."""
    given = {"rows": 4, "tokens": 8, "mode": Mode.DECODE, "variant": "default", "buffers": {"ids": 1, "lens": 2}}
    return Batch(**(given | {"counts": COUNTS} | words))


def test_every_process_computes_the_same_digest():
    """Ranks are processes, and Python's own hash of a text is another in each of them."""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    run = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST], capture_output=True, text=True, check=True, env=environment
    )
    assert str(digest_of_recording(KEY, batch())) == run.stdout.strip()


@pytest.mark.parametrize(
    "words",
    [
        {"tokens": 4},
        {"rows": 2},
        {"full_hidden": True},
        {"mode": Mode.IDLE},
        {"buffers": {"ids": 1}},
        {"counts": None},
        {"counts": RankCounts([8, 4], [4, 2], all_decode_or_idle=True)},
    ],
    ids=repr,
)
def test_other_recordings_have_other_digests(words):
    """What must be alike on every rank is in the digest (fault H7); where buffers live is not."""
    assert digest_of_recording(KEY, batch()) != digest_of_recording(KEY, batch(**words))
    assert digest_of_recording(KEY, batch()) == digest_of_recording(KEY, batch(buffers={"lens": 3, "ids": 4}))


def test_a_digest_fits_a_signed_integer():
    """It is sent as one of 64 bits."""
    assert all(0 <= digest_of(number) < 2**63 for number in range(200))


@pytest.mark.parametrize("ranks", [None, FakeRanks(count=1)])
def test_a_rank_alone_needs_no_agreement(ranks):
    """Without others there is nobody to ask."""
    settle_plan(ranks, [KEY])
    assert ranks is None or [] == ranks.calls
