"""Task modules and apps made for one test, and a registry of its own for each that makes one."""

from __future__ import annotations

import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobrail_django import registry


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test an empty registry; the one of the process comes back after it."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(registry, "_discovered", False)


@pytest.fixture
def make_task(own_registry: None, tmp_path: Path) -> Callable[..., types.ModuleType]:
    """Run source text as the top level of a module (``made`` unless named) that has imported `task`; returns it."""

    def make(source: str, *, name: str = "made", file: str = "made.py") -> types.ModuleType:
        module = types.ModuleType(name)
        text = "from jobrail_django import task\n" + textwrap.dedent(source)
        path = tmp_path / file
        path.write_text(text)
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
        return module

    return make


@pytest.fixture
def make_app(
    own_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings
) -> Iterator[Callable[..., None]]:
    """Install an app made of the given modules (``name=source text``)."""
    made: list[str] = []

    def make(app: str, **modules: str) -> None:
        package = tmp_path / app
        package.mkdir()
        (package / "__init__.py").write_text("")
        for name, source in modules.items():
            (package / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(tmp_path))
        made.append(app)
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, app]

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] in made]:
        del sys.modules[name]
