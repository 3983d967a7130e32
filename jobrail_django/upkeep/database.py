"""One transaction of an upkeep part, on a connection that may have idled for hours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import DatabaseError, InterfaceError, OperationalError, ProgrammingError, connections, transaction

from ..errors import ConfigurationError
from ..querysets import tables_missing


@contextmanager
def writing(using: str) -> Iterator[None]:
    """Run the block in one transaction, which is committed when the block is left.

    A connection that the server has closed meanwhile is replaced first: no request ever ends here that would do
    it. `CONN_MAX_AGE` is for the caller's loop to honour, where it rests; here it would mean a new connection for
    every batch.

    Raises:
        ConfigurationError: JobRail's tables are missing.
        django.db.DatabaseError: nothing was written; trying again may help.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        if connection.connection is not None and not connection.is_usable():
            connection.close()
        if not connection.force_debug_cursor:
            connection.queries_log.clear()  # with DEBUG Django keeps the last 9,000 statements, whole batches here
    try:
        with transaction.atomic(using=using, durable=True):
            yield
    except InterfaceError as exc:  # no DatabaseError, yet it means the same: the connection broke in the middle
        raise OperationalError(*exc.args) from exc
    except (OperationalError, ProgrammingError) as exc:
        missing = False
        with suppress(DatabaseError):
            missing = tables_missing(using)
        if missing:
            raise ConfigurationError(
                f"Database {using!r} has no tables of JobRail: run `manage.py migrate --database {using}`."
            ) from exc
        raise
