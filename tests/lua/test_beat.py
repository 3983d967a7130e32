"""`beat`: the workers that are there."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import GONE, NOW, Rig, Row, hold

TTL = 30_000
WORKERS, WORKER = "{jobrail}:workers", "{jobrail}:worker:w"


def beat(rig: Rig, ttl_ms: int | str = TTL, worker: str = "w", info: str = "info") -> object:
    return rig.run(Script.BEAT, rig.now, worker, ttl_ms, info)


HERE = {f"{WORKERS}/w": NOW + TTL, f"{WORKERS}@": "expires", WORKER: "info", f"{WORKER}@": "expires"}

TABLE = [
    Row(name="a worker comes", call=beat, reply=["OK"], delta=HERE),
    Row(
        name="a worker stays",
        seed=lambda rig: (beat(rig), setattr(rig, "now", NOW + 10)),
        call=lambda rig: beat(rig, info="other"),
        reply=["OK"],
        delta={f"{WORKERS}/w": NOW + TTL + 10, WORKER: "other"},
    ),
    Row(
        name="a worker leaves",
        seed=beat,
        call=lambda rig: beat(rig, 0),
        reply=["OK"],
        delta=dict.fromkeys(HERE, GONE),
    ),
    Row(name="a worker leaves that was not there", call=lambda rig: beat(rig, 0), reply=["OK"]),
    Row(
        name="workers whose time is over are dropped",
        seed=lambda rig: (beat(rig, worker="old"), rig.client.delete(rig.key_of(Script.BEAT, 2)),
                          setattr(rig, "now", NOW + TTL)),
        call=beat,
        reply=["OK"],
        delta={f"{WORKERS}/old": GONE, f"{WORKERS}/w": NOW + 2 * TTL, WORKER: "info", f"{WORKER}@": "expires"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_beat(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_traces_of_a_worker_go_by_themselves_c9(rig: Rig) -> None:
    beat(rig)
    key = rig.key_of(Script.BEAT, 2)

    assert 0 < rig.client.pttl(key) <= TTL
    assert 0 < rig.client.pttl(rig.key_of(Script.BEAT, 1)) <= TTL


@pytest.mark.parametrize("ttl_ms", ["", "x"])
def test_time_that_is_no_number_is_refused(rig: Rig, ttl_ms: str) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG beat"):
        beat(rig, ttl_ms)
