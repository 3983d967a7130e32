"""The rows people look at: jobs, their attempts, workers and queues.

The mirror copies them from Redis, through `querysets` only; nothing else writes them and Redis does not
depend on them. A row may be behind Redis, never ahead of it. Nothing here depends on a setting of the
site, so that `makemigrations` finds no change whatever the site's settings are.
"""

from __future__ import annotations

from django.db import models

from .querysets import AttemptQuerySet, JobQuerySet, QueueQuerySet, WorkerQuerySet


class Job(models.Model):
    """One request to run a task, as the mirror last saw it.

    `id` is a UUIDv7, so the primary key is also the order of creation. `rev` is Redis's count of the
    job's transitions: a row is only ever overwritten by a higher one. `started_at` is the last claim;
    `attempts` and `losses` count within the `round`, which an explicit retry raises. The error is the last
    attempt's.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=64)
    state = models.CharField(max_length=16)
    rev = models.BigIntegerField(default=0)
    round = models.IntegerField(default=1)
    priority = models.SmallIntegerField(default=0)
    run_after = models.DateTimeField(null=True)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    attempts = models.IntegerField(default=0)
    losses = models.IntegerField(default=0)
    max_attempts = models.IntegerField(default=1)
    max_losses = models.IntegerField(default=1)
    payload = models.TextField(default="")
    result = models.TextField(null=True)
    reason = models.CharField(max_length=255, default="")
    error_type = models.CharField(max_length=255, null=True)
    error_message = models.TextField(null=True)
    claim = models.CharField(max_length=100, default="")
    cancel_requested = models.BooleanField(default=False)
    mirrored_at = models.DateTimeField()

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = "job"
        verbose_name_plural = "jobs"
        default_permissions = ("view",)
        permissions = [("retry_job", "Can retry job"), ("cancel_job", "Can cancel job")]
        indexes = [
            models.Index(fields=["state", "id"], name="jobrail_job_state"),
            models.Index(fields=["queue", "id"], name="jobrail_job_queue"),
            # The operator classes let PostgreSQL use the index for a prefix in any collation;
            # other databases ignore them.
            models.Index(
                fields=["task", "id"],
                name="jobrail_job_task",
                opclasses=["varchar_pattern_ops", "uuid_ops"],
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)


class Attempt(models.Model):
    """One started execution of a job that has ended, whatever its outcome.

    `number` counts, within the round, those executions that use up an attempt or a loss.
    """

    id = models.BigAutoField(primary_key=True)
    # The index of the unique constraint starts with the job: no second one.
    job = models.ForeignKey(Job, models.CASCADE, related_name="history", db_index=False)
    token = models.BigIntegerField()
    claim = models.CharField(max_length=100)
    round = models.IntegerField(default=1)
    number = models.IntegerField()
    outcome = models.CharField(max_length=16)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    worker = models.CharField(max_length=64)
    error_type = models.CharField(max_length=255, default="")
    error_message = models.TextField(default="")
    traceback = models.TextField(default="")

    objects = AttemptQuerySet.as_manager()

    class Meta:
        verbose_name = "attempt"
        verbose_name_plural = "attempts"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["job", "claim"], name="jobrail_attempt_job_claim")]

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.number}"


class Worker(models.Model):
    """One worker's process tree, as its last beat described it.

    `gone_at` is when it was first missed, None while Redis knows it.
    """

    id = models.CharField(max_length=64, primary_key=True)
    name = models.CharField(max_length=255)
    host = models.CharField(max_length=255)
    pid = models.BigIntegerField()
    queues = models.TextField()
    processes = models.IntegerField()
    threads = models.IntegerField()
    version = models.CharField(max_length=64)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    gone_at = models.DateTimeField(null=True)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        verbose_name = "worker"
        verbose_name_plural = "workers"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class Queue(models.Model):
    """One queue's figures, and how far the mirror is behind, when the mirror last looked.

    `epoch` is the last that the mirror has seen of Redis's own.
    """

    name = models.CharField(max_length=64, primary_key=True)
    paused = models.BooleanField(default=False)
    ready = models.BigIntegerField(default=0)
    scheduled = models.BigIntegerField(default=0)
    retrying = models.BigIntegerField(default=0)
    running = models.BigIntegerField(default=0)
    epoch = models.CharField(max_length=64, default="")
    lag_ms = models.BigIntegerField(default=0)
    mirrored_at = models.DateTimeField()

    objects = QueueQuerySet.as_manager()

    class Meta:
        verbose_name = "queue"
        verbose_name_plural = "queues"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name
