"""The memory that a supervisor shares with its children: who holds what.

Made before the children are forked. Each field has one writer. A slot writes what it asks for before it
asks and what it was given before it starts anything, so that when a child dies the supervisor can say of
each of its jobs whether it had started, and give all of them back at once.
"""

from __future__ import annotations

import mmap
import struct
import uuid
from dataclasses import dataclass

#: Jobs that one slot can hold.
ENTRIES = 100

# One held job. The claim number comes last and is read before and after the rest: 0 = the entry is free.
_BODY = struct.Struct("<16sHxxIddd")  # id, queue, retry delay ms, claimed, started, hard deadline
_NUMBER = struct.Struct("<Q")
_NUMBER_AT = _BODY.size
_NOTICE_AT = _NUMBER_AT + _NUMBER.size  # claim number << 2 | notice, written by the supervisor
_ENTRY_SIZE = _NOTICE_AT + _NUMBER.size

# One slot: the claim that is under way (number 0 = none) and its queue, then its entries.
_CLAIM = struct.Struct("<QQQ")  # n, ack, queue
_SLOT_SIZE = _CLAIM.size + ENTRIES * _ENTRY_SIZE

# One child: moment of the last sign of life, jobs done.
_CHILD = struct.Struct("<dQ")

_STARTED_AT = struct.calcsize("<16sHxxId")
_F64 = struct.Struct("<d")

#: Notices of the supervisor to the thread that runs a job.
LOST, CANCEL = 1, 2


@dataclass(frozen=True, slots=True)
class Held:
    """A job that a slot holds. Moments are `time.monotonic()`; 0.0 = not.

    Attributes:
        job_id: the job.
        n: number of the claim under which it is held.
        queue: index of its queue in the worker's list.
        claimed: when the claim was sent.
        started: when its handler started.
        hard_deadline: when the child is to be replaced because of it.
        retry_delay_ms: backoff that then applies.
    """

    index: int
    job_id: str
    n: int
    queue: int
    claimed: float
    started: float
    hard_deadline: float
    retry_delay_ms: int


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A claim whose reply a slot has not yet taken in."""

    n: int
    ack: int
    queue: int


class SharedMemory:
    """The table of all children of one supervisor; `child` is a child's place, not its process id."""

    def __init__(self, children: int, slots: int) -> None:
        self.slots = slots
        self._child_size = _CHILD.size + slots * _SLOT_SIZE
        self._map = mmap.mmap(-1, mmap.PAGESIZE + children * self._child_size)

    # The worker as a whole; written by the supervisor.

    @property
    def stopping(self) -> bool:
        """True once no slot may claim any more."""
        return self._map[0] != 0

    @stopping.setter
    def stopping(self, value: bool) -> None:
        self._map[0] = int(value)

    @property
    def upkeep_stopping(self) -> bool:
        """True once the upkeep is to store what is left and end."""
        return self._map[1] != 0

    @upkeep_stopping.setter
    def upkeep_stopping(self, value: bool) -> None:
        self._map[1] = int(value)

    # A child

    def _child_at(self, child: int) -> int:
        return mmap.PAGESIZE + child * self._child_size

    def reset_child(self, child: int) -> None:
        """Forget all that the former child in this place held."""
        at = self._child_at(child)
        self._map[at : at + self._child_size] = bytes(self._child_size)

    def sign_of_life(self, child: int, now: float, jobs_done: int) -> None:
        """Record that the child's monitor runs."""
        _CHILD.pack_into(self._map, self._child_at(child), now, jobs_done)

    def last_sign(self, child: int) -> tuple[float, int]:
        """Read the moment of a child's last sign of life and how many jobs it has done."""
        return _CHILD.unpack_from(self._map, self._child_at(child))

    # A slot

    def slot(self, child: int, slot: int) -> SlotMemory:
        """Return one slot's part."""
        return SlotMemory(self._map, self._child_at(child) + _CHILD.size + slot * _SLOT_SIZE)


class SlotMemory:
    """What one slot holds. Its own thread writes, except for notices; the supervisor reads."""

    __slots__ = ("_at", "_entries", "_map")

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._map = memory
        self._at = at
        self._entries = at + _CLAIM.size

    def begin_claim(self, n: int, ack: int, queue: int) -> None:
        """Record a claim before it is sent."""
        _CLAIM.pack_into(self._map, self._at, n, ack, queue)

    def end_claim(self) -> None:
        """Record that the claim's reply has been taken in."""
        _CLAIM.pack_into(self._map, self._at, 0, 0, 0)

    def pending_claim(self) -> PendingClaim | None:
        """Read the claim that is under way."""
        n, ack, queue = _CLAIM.unpack_from(self._map, self._at)
        return PendingClaim(n, ack, queue) if n else None

    def hold(self, index: int, job_id: str, n: int, queue: int, claimed: float) -> None:
        """Record a job that a claim has returned."""
        at = self._entries + index * _ENTRY_SIZE
        _BODY.pack_into(self._map, at, uuid.UUID(job_id).bytes, queue, 0, claimed, 0.0, 0.0)
        _NUMBER.pack_into(self._map, at + _NUMBER_AT, n)

    def start(self, index: int, now: float, hard_deadline: float, retry_delay_ms: int) -> None:
        """Record that a job's handler is about to start; it will be charged if the child dies."""
        at = self._entries + index * _ENTRY_SIZE
        if hard_deadline:
            body = _BODY.unpack_from(self._map, at)
            _BODY.pack_into(self._map, at, body[0], body[1], retry_delay_ms, body[3], now, hard_deadline)
        else:
            _F64.pack_into(self._map, at + _STARTED_AT, now)

    def drop(self, index: int) -> None:
        """Record that the slot has nothing more to do with a job."""
        _NUMBER.pack_into(self._map, self._entries + index * _ENTRY_SIZE + _NUMBER_AT, 0)

    def held(self) -> list[Held]:
        """Read all that the slot holds; an entry that changes meanwhile is left out."""
        found = []
        for index in range(ENTRIES):
            at = self._entries + index * _ENTRY_SIZE
            (n,) = _NUMBER.unpack_from(self._map, at + _NUMBER_AT)
            if not n:
                continue
            raw, queue, delay_ms, claimed, started, hard = _BODY.unpack_from(self._map, at)
            if _NUMBER.unpack_from(self._map, at + _NUMBER_AT)[0] == n:
                found.append(Held(index, str(uuid.UUID(bytes=raw)), n, queue, claimed, started, hard, delay_ms))
        return found

    def notify(self, index: int, n: int, notice: int) -> None:
        """Tell the slot that its lease of claim `n` is LOST, or that the job's CANCEL was asked for."""
        _NUMBER.pack_into(self._map, self._entries + index * _ENTRY_SIZE + _NOTICE_AT, n << 2 | notice)

    def notice(self, index: int, n: int) -> int:
        """Read what the supervisor said about claim `n` of an entry: 0, LOST or CANCEL."""
        (value,) = _NUMBER.unpack_from(self._map, self._entries + index * _ENTRY_SIZE + _NOTICE_AT)
        return value & 3 if value >> 2 == n else 0
