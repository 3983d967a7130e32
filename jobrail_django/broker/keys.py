"""Names of the keys in Redis. The data model is described in `lua/README.md`.

All keys of a queue carry the hash tag `{queue}`, so one queue is one Cluster slot.
"""

import re

from ..errors import ConfigurationError

#: Bytes that would break a hash tag or a script's word lists are kept out of names.
QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

#: Tag of the data that belongs to no queue.
SHARED_TAG = "jobrail"


class QueueKeys:
    """The keys of one queue.

    Args:
        prefix: `settings.JOBRAIL["PREFIX"]`.
        queue: a queue's name.

    Raises:
        ConfigurationError: the name has characters that a key may not have.
    """

    __slots__ = ("changed", "leases", "meta", "prefix", "ready", "retrying", "scheduled", "wake")

    def __init__(self, prefix: str, queue: str) -> None:
        if not QUEUE_NAME.fullmatch(queue):
            raise ConfigurationError(
                f"Queue name {queue!r} is not valid: use 1 to 64 letters, digits, '_', '.' or '-'."
            )
        self.prefix = f"{prefix}:{{{queue}}}:"
        self.ready = self.prefix + "ready"
        self.scheduled = self.prefix + "scheduled"
        self.retrying = self.prefix + "retrying"
        self.leases = self.prefix + "leases"
        self.changed = self.prefix + "changed"
        self.meta = self.prefix + "meta"
        self.wake = self.prefix + "wake"

    def job(self, job_id: str) -> str:
        """Name the hash of a job."""
        return f"{self.prefix}job:{job_id}"

    def key(self, digest: str) -> str:
        """Name the string that holds an idempotency key."""
        return f"{self.prefix}key:{digest}"

    def slot(self, slot: str) -> str:
        """Name the string that holds a slot's last claim."""
        return f"{self.prefix}slot:{slot}"


def workers_key(prefix: str) -> str:
    """Name the zset of registered workers."""
    return f"{prefix}:{{{SHARED_TAG}}}:workers"


def worker_key(prefix: str, worker_id: str) -> str:
    """Name the string that describes one worker."""
    return f"{prefix}:{{{SHARED_TAG}}}:worker:{worker_id}"
