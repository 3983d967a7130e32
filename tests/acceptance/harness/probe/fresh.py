"""A task of the next release: only those who ask for it know it."""

from jobrail_django import task

from ..ledger import recorded


@task
def brand_new():
    with recorded():
        return "new"
