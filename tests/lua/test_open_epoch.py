"""`open_epoch`: the epoch of a queue that has none."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script

from .rig import EPOCH, Rig, Row, hold

TABLE = [
    Row(
        name="a queue without an epoch takes the proposed one",
        seed=lambda rig: rig.client.delete(rig.keys.meta),
        call=lambda rig: rig.run(Script.OPEN_EPOCH, "mine"),
        reply=["OK", "mine", 1],
        delta={"meta/epoch": "mine"},
        again=["OK", "mine", 0],
    ),
    Row(
        name="a queue keeps its epoch",
        call=lambda rig: rig.run(Script.OPEN_EPOCH, "mine"),
        reply=["OK", EPOCH, 0],
    ),
    Row(
        name="a paused queue without an epoch stays paused",
        seed=lambda rig: (rig.pause(), rig.client.hdel(rig.keys.meta, "epoch")),
        call=lambda rig: rig.run(Script.OPEN_EPOCH, "mine"),
        reply=["OK", "mine", 1],
        delta={"meta/epoch": "mine"},
        again=["OK", "mine", 0],
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_open_epoch(rig: Rig, row: Row) -> None:
    hold(rig, row)
