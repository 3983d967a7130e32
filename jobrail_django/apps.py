"""The Django application: label `jobrail`."""

from django.apps import AppConfig


class JobRailConfig(AppConfig):
    """Register JobRail's models, admin and system checks.

    Opens no connection and reads no setting: a site with JobRail installed starts without Redis.
    """

    name = "jobrail_django"
    label = "jobrail"
    verbose_name = "JobRail"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from . import checks  # noqa: F401  (importing registers them)
