"""`pause`: queues that rest."""

from __future__ import annotations

import pytest

from .rig import GONE, NOW, Out, Rig, Row, claim_id, hold

WOKEN = {"wake/0": "1", "wake@": "expires"}

TABLE = [
    Row(
        name="pause",
        seed=lambda rig: rig.ready(1),
        call=lambda rig: rig.pause(),
        reply=["OK"],
        delta={"meta/paused": "1"},
    ),
    Row(
        name="resume wakes a worker where there is work",
        seed=lambda rig: (rig.ready(1), rig.pause()),
        call=lambda rig: rig.pause(""),
        reply=["OK"],
        delta={"meta/paused": GONE, **WOKEN},
    ),
    Row(
        name="resume of an empty queue wakes nobody",
        seed=lambda rig: rig.pause(),
        call=lambda rig: rig.pause(""),
        reply=["OK"],
        delta={"meta/paused": GONE},
    ),
    Row(name="resume of a queue that is not paused", call=lambda rig: rig.pause(""), reply=["OK"]),
    Row(
        name="a queue that was never used",
        seed=lambda rig: rig.client.delete(rig.keys.meta),
        call=lambda rig: rig.pause(),
        reply=["OK"],
        delta={"meta/paused": "1"},
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_pause(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_running_jobs_of_a_paused_queue_go_on_to_their_end(rig: Rig) -> None:
    rig.running(1)
    rig.pause()

    assert rig.heartbeat((1, claim_id(1), "1")) == ["OK", [], []]
    assert rig.settle(Out(n=1, verb="succeed", claim=claim_id(1)), n=2)[1:] == [[["OK", "succeeded", 3]], ["PAUSED"]]


def test_resumed_queue_gives_its_jobs(rig: Rig) -> None:
    rig.ready(1)
    rig.pause()
    assert rig.claim(1) == ["PAUSED"]
    rig.pause("")

    assert rig.claim(1)[3][0] == "#1"
    assert rig.state()["leases/#1"] > NOW
