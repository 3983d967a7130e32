"""JobRail in Django's admin: jobs to look at, retry and cancel; queues and workers to look at.

Rows are read-only: what changes a job goes through `client`, on a POST, with a permission of its own.
Importing the package registers everything with the default site.
"""

from .jobs import JobAdmin
from .registers import QueueAdmin, WorkerAdmin

__all__ = ["JobAdmin", "QueueAdmin", "WorkerAdmin"]
