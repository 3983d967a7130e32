"""Tasks for tests that run in this process."""

from jobrail_django import task


@task
def ok(value=None):
    return value
