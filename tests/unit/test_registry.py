"""Finding tasks by name, and the modules that hold them."""

from __future__ import annotations

import sys

import pytest

from jobrail_django import registry
from jobrail_django.errors import TaskAlreadyRegistered, TaskModuleError, TaskNotRegistered

pytestmark = pytest.mark.usefixtures("own_registry")


def test_task_is_found_by_module_and_name(make_task):
    module = make_task("@task\ndef send(): ...")

    assert registry.get("made.send") is module.send
    assert registry.names() == ["made.send"]


def test_unknown_name_is_refused_with_the_closest(make_task):
    make_task("@task\ndef send(): ...")

    with pytest.raises(
        TaskNotRegistered, match=r"No task 'made.sent' is registered; did you mean 'made.send'\?"
    ) as caught:
        registry.get("made.sent")

    assert caught.value.task == "made.sent"


@pytest.mark.parametrize("name", ["os.system", "builtins.exec", "subprocess.run", "antigravity.fly", "made.plain"])
def test_name_from_data_is_never_imported(make_task, name):
    """SCENARIOS N2."""
    make_task("def plain(): ...")
    loaded = "antigravity" in sys.modules

    with pytest.raises(TaskNotRegistered):
        registry.get(name)

    assert ("antigravity" in sys.modules) == loaded


def test_two_functions_of_one_name_in_one_module_are_refused(make_task):
    with pytest.raises(
        TaskAlreadyRegistered, match=r"'made.send' is already registered, from .*:2; .*:4 defines it again"
    ):
        make_task("@task\ndef send(): ...\n@task\ndef send(): ...")


def test_two_modules_under_one_name_are_refused(make_task):
    make_task("@task\ndef send(): ...")

    with pytest.raises(TaskAlreadyRegistered):
        make_task("@task\ndef send(): ...", file="other.py")


def test_two_wrapped_functions_of_one_name_are_refused(make_task):
    source = """
        import functools
        def wrapped(func):
            @functools.wraps(func)
            def wrapper(): return func()
            return wrapper
        @task
        @wrapped
        def send(): ...
        @task
        @wrapped
        def send(): ...
    """
    with pytest.raises(TaskAlreadyRegistered):
        make_task(source)


def test_module_that_is_imported_again_replaces_its_task(make_task):
    first = make_task("@task\ndef send(): return 1")
    second = make_task("@task\ndef send(): return 2")

    assert first.send is not second.send
    assert registry.get("made.send") is second.send


def test_tasks_and_jobs_of_every_app_are_imported(make_app):
    make_app(
        "findme", tasks="from jobrail_django import task\n@task\ndef a(): ...", jobs="import findme.tasks", other="1/0"
    )

    imported = registry.autodiscover()

    assert [name for name in imported if name.startswith("findme")] == ["findme.tasks", "findme.jobs"]
    assert "findme.tasks.a" in registry.names()


def test_lookup_discovers_by_itself(make_app):
    make_app("findlate", jobs="from jobrail_django import task\n@task\ndef a(): ...")

    assert registry.get("findlate.jobs.a").name == "findlate.jobs.a"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_module", ModuleNotFoundError),
        ("1 / 0", ZeroDivisionError),
        ("def broken(:", SyntaxError),
        ("import sys; sys.exit(3)", SystemExit),
    ],
)
def test_module_that_fails_on_import_is_named(make_app, source, cause):
    make_app("brokenapp", tasks=source)

    with pytest.raises(TaskModuleError, match=f"'brokenapp.tasks' fails on import with {cause.__name__}: ") as caught:
        registry.autodiscover()

    assert caught.value.module == "brokenapp.tasks"
    assert isinstance(caught.value.__cause__, cause)
