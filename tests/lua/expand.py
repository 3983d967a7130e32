"""Writes the scripts with their includes into a folder, for luacheck: ``python tests/lua/expand.py FOLDER``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from jobrail_django.broker.scripts import Script, load


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for script in Script:
        (folder / f"{script.value}.lua").write_text(load(script).text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
