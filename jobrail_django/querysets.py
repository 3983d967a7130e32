"""Bulk writes that never move a row backwards.

JobRail's tables are written through here only: one statement per batch, no query per row, text cleaned of
what some database cannot hold. Every write is safe to repeat and safe beside another writer of the
same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from django.apps import apps
from django.db import connections, models

if TYPE_CHECKING:
    from .models import Attempt, Job, Queue, Worker  # noqa: F401  (named in the classes' type arguments)

M = TypeVar("M", bound=models.Model)

#: The value of every written column of one row, by the field's attname.
Row = Mapping[str, object]

#: Characters of a cut text that come from its end: there stands what a traceback is about.
TAIL_SHARE = 0.5


def clean(text: str, limit: int | None = None) -> str:
    r"""Make `text` fit for every database, and say visibly what was changed.

    PostgreSQL refuses a NUL and no database takes a lone surrogate: each becomes the text of its escape,
    `\x00` or `\ud800`, on all databases alike, so that rows are the same everywhere.

    Args:
        text: any string.
        limit: characters; a longer text keeps its head, ended by "…". None = no limit.
    """
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return text


def _clean_value(value: object, limit: int | None) -> str | None:
    return None if value is None else clean(str(value), limit)


def cut(text: str, limit: int) -> str:
    """Keep the head and the tail of a text longer than `limit` characters, with a mark between them.

    The result is `limit` characters and the mark long.
    """
    if len(text) <= limit:
        return text
    tail = int(limit * TAIL_SHARE)
    gone = len(text) - limit
    return f"{text[: limit - tail]}\n… {gone} characters cut …\n{text[len(text) - tail :]}"


def tables_missing(using: str) -> bool:
    """Tell whether database `using` lacks any of JobRail's tables: then `migrate` has to run first.

    Raises:
        django.db.DatabaseError: the database cannot be asked.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        found = set(connection.introspection.table_names(cursor))
    wanted = {model._meta.db_table for model in apps.get_app_config("jobrail").get_models()}
    return not wanted <= found


def task_prefix(prefix: str, using: str) -> models.Q:
    """Return the condition that a job's task begins with `prefix`, in the form `using` has an index for.

    Case matters except on MariaDB and MySQL.
    """
    vendor = connections[using].vendor
    if vendor == "sqlite":  # its LIKE … ESCAPE uses no index; its order is that of code points, so a range is the same
        return models.Q(task__gte=prefix, task__lt=prefix + chr(0x10FFFF))
    if vendor == "mysql":  # its LIKE BINARY uses no index
        return models.Q(task__istartswith=prefix)
    return models.Q(task__startswith=prefix)


class WriteQuerySet(models.QuerySet[M]):
    """A query set with the two bulk writes. Both write in the caller's transaction."""

    def insert_missing(self, rows: Sequence[Row], *, key: Sequence[str]) -> None:
        """Insert those rows whose `key` (attnames of a unique constraint) is not there yet.

        A key that is taken is no fault; every other fault of the database raises.
        """
        insert = _Insert(self)
        insert.run(rows, insert.on_conflict_ignore(key))

    def upsert(self, rows: Sequence[Row], *, guard: str, keep: Sequence[str] = ()) -> None:
        """Insert the rows, and overwrite those there whose `guard` is lower.

        A row that is as new or newer stays as it is, whole. Rows are written in the order of their primary
        keys, so that two writers do not wait for each other crosswise.

        Args:
            rows: a value for every column; no primary key twice.
            guard: attname of a column that only ever grows.
            keep: attnames of columns where None leaves the value that is there.

        Raises:
            django.db.DatabaseError: nothing of the failing statement is written.
        """
        pk = self.model._meta.pk.attname
        insert = _Insert(self)
        insert.run(sorted(rows, key=lambda row: str(row[pk])), insert.on_conflict_update(pk, guard, keep))


class _Insert:
    """One model's multi-row INSERT on one database, with the database's own words for conflicts."""

    def __init__(self, queryset: models.QuerySet[Any]) -> None:
        self.meta = queryset.model._meta
        self.connection = connections[queryset.db]
        self.fields = [f for f in self.meta.concrete_fields if not isinstance(f, models.AutoField)]
        self.plan = [(f, isinstance(f, (models.CharField, models.TextField))) for f in self.fields]
        self.quote = self.connection.ops.quote_name
        self.table = self.quote(self.meta.db_table)

    def run(self, rows: Sequence[Row], on_conflict: str) -> None:
        """Insert all rows in one statement, or as few as the database's limit of parameters allows."""
        if not rows:
            return
        postgresql = self.connection.vendor == "postgresql"
        source = self.recordset if postgresql else self.values
        size = len(rows) if postgresql else self.connection.ops.bulk_batch_size(self.fields, rows)
        columns = ", ".join(self.quote(field.column) for field in self.fields)
        with self.connection.cursor() as cursor:
            for start in range(0, len(rows), size):
                sql, params = source(rows[start : start + size])
                cursor.execute(f"INSERT INTO {self.table} ({columns}) {sql} {on_conflict}", params)

    def values(self, rows: Sequence[Row]) -> tuple[str, list[object]]:
        """Write the rows as a VALUES list with one parameter for each value."""
        one = f"({', '.join(['%s'] * len(self.fields))})"
        params: list[object] = []
        for row in rows:
            for field, is_text in self.plan:
                value = row[field.attname]
                if is_text:
                    params.append(_clean_value(value, field.max_length))
                else:
                    params.append(field.get_db_prep_save(value, self.connection))
        return f"VALUES {', '.join([one] * len(rows))}", params

    def recordset(self, rows: Sequence[Row]) -> tuple[str, list[object]]:
        """Write the rows as one JSON parameter, which PostgreSQL takes four times as fast as VALUES.

        With VALUES the driver spends the time on the thousands of placeholders.
        """
        records = [
            {
                field.column: _clean_value(row[field.attname], field.max_length) if is_text else row[field.attname]
                for field, is_text in self.plan
            }
            for row in rows
        ]
        columns = ", ".join(self.quote(field.column) for field in self.fields)
        # Without its length a type cuts nothing silently.
        types = ((f.column, (f.db_type(self.connection) or "").split("(")[0]) for f in self.fields)
        definition = ", ".join(f"{self.quote(column)} {kind}" for column, kind in types)
        sql = f"SELECT {columns} FROM json_to_recordset(%s) AS r ({definition})"
        return sql, [orjson.dumps(records).decode()]

    def on_conflict_ignore(self, key: Sequence[str]) -> str:
        """Write the clause that leaves a row whose key is taken as it is."""
        columns = [self.column(attname) for attname in key]
        if self.connection.vendor == "mysql":
            # Not INSERT IGNORE: that swallows every other fault too.
            return f"ON DUPLICATE KEY UPDATE {columns[0]} = {columns[0]}"
        return f"ON CONFLICT ({', '.join(columns)}) DO NOTHING"

    def on_conflict_update(self, pk: str, guard: str, keep: Sequence[str]) -> str:
        """Write the clause that overwrites a row whose guard is lower."""
        kept = {self.column(attname) for attname in keep}
        key, rev = self.column(pk), self.column(guard)
        columns = [self.quote(f.column) for f in self.fields if f.attname not in (pk, guard)]
        if self.connection.vendor == "mysql":
            # MariaDB and MySQL assign from left to right: the guard comes last.
            newer = f"VALUES({rev}) > {rev}"
            new = {c: f"VALUES({c})" for c in columns}
            new.update((c, f"COALESCE({new[c]}, {c})") for c in kept)
            sets = [f"{c} = IF({newer}, {new[c]}, {c})" for c in columns]
            sets.append(f"{rev} = IF({newer}, VALUES({rev}), {rev})")
            return f"ON DUPLICATE KEY UPDATE {', '.join(sets)}"
        new = {c: f"EXCLUDED.{c}" for c in columns}
        new.update((c, f"COALESCE({new[c]}, {self.table}.{c})") for c in kept)
        sets = [f"{c} = {value}" for c, value in new.items()] + [f"{rev} = EXCLUDED.{rev}"]
        return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(sets)} WHERE {self.table}.{rev} < EXCLUDED.{rev}"

    def column(self, attname: str) -> str:
        """Quote the column of the field with this attname."""
        return self.quote(next(f.column for f in self.fields if f.attname == attname))


class JobQuerySet(WriteQuerySet["Job"]):
    """Jobs: written by `rev`."""


class AttemptQuerySet(WriteQuerySet["Attempt"]):
    """Attempts: written once, never changed."""


class WorkerQuerySet(WriteQuerySet["Worker"]):
    """Workers: written by the time they were last seen."""


class QueueQuerySet(WriteQuerySet["Queue"]):
    """Queues: written by the time the mirror last looked."""
