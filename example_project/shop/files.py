"""Write files so that a reader never sees half of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Put the chunks into the file, in one step for whoever reads it.

    Safe to repeat and from several processes at once: the last writer's file stands, whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with part.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
