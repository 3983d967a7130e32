"""Settings for commands in processes of their own: as the environment says, with every log record on stderr."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [app for app in INSTALLED_APPS if app != "shop"]
ROOT_URLCONF = "tests.probes.urls"
JOBRAIL = json.loads(os.environ["PROBES_JOBRAIL"])
DATABASES["default"] |= json.loads(os.environ.get("PROBES_DATABASE", "{}"))
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"all": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["all"], "level": "DEBUG"},
}
