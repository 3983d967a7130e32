"""`changes`: what the mirror has to store."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import NOW, New, Rig, job_id


def test_nothing_has_changed(rig: Rig) -> None:
    assert rig.changes() == ["OK", 0, 0]


def test_jobs_come_in_the_order_of_their_first_change_with_all_fields(rig: Rig) -> None:
    rig.ready(2)
    rig.now += 10
    rig.ready(1)
    rig.now += 10
    rig.cancel(2)
    rig.now += 10
    state = rig.state()

    reply = rig.changes()

    assert reply[:3] == ["OK", 30, 2]
    assert [entry[0] for entry in reply[3:]] == ["#2", "#1"]
    fields = dict(zip(reply[3][1::2], reply[3][2::2], strict=True))
    assert fields.pop("p1") == state["job:#2/payload"]
    assert fields == {name: value for name, value in rig.job(2).items() if name != "payload"}
    assert rig.changes() == reply
    assert rig.delta == {}


def test_limit_takes_the_oldest_and_the_total_tells_the_rest(rig: Rig) -> None:
    rig.enqueue(*(New(n=n) for n in range(1, 6)))

    reply = rig.changes(2)

    assert (reply[2], [entry[0] for entry in reply[3:]]) == (5, ["#1", "#2"])


def test_missing_and_wrong_hashes_come_without_fields(rig: Rig) -> None:
    rig.ready(1, 2, 3)
    for n in (1, 2):
        rig.damage(n)
    rig.client.delete(rig.job_key(1), rig.job_key(2))
    rig.client.set(rig.job_key(2), "no hash")

    reply = rig.changes()

    assert reply[3:5] == [["#1"], ["#2"]]
    assert len(reply[5]) > 1


def test_clock_that_went_back_gives_no_negative_lag(rig: Rig) -> None:
    rig.ready(1)
    rig.now -= 50

    assert rig.changes()[1] == 0


def test_paused_queue_is_mirrored(rig: Rig) -> None:
    rig.ready(1)
    rig.pause()

    assert [entry[0] for entry in rig.changes()[3:]] == ["#1"]


def test_binary_member_comes_back_to_mirrored_and_leaves_a10(rig: Rig) -> None:
    rig.client.zadd(rig.keys.changed, {b"\xff\x00": NOW, job_id(9): NOW})

    found = rig.broker.changes("q")
    rig.broker.mirrored("q", list(found.gone))

    assert [rev for _, rev in found.gone] == [0, 0]
    assert rig.client.zcard(rig.keys.changed) == 0


@pytest.mark.parametrize("limit", [0, 101, "", "x"])
def test_limit_out_of_range_is_refused(rig: Rig, limit: int | str) -> None:
    with pytest.raises(ScriptError, match=r"JOBRAILARG changes takes a limit of 1\.\.100"):
        rig.run(Script.CHANGES, rig.keys.prefix, NOW, limit)
