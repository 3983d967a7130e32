"""Settings of the probe site, as the test that starts it says in the environment."""

import json
import os

from tests.settings import database

SECRET_KEY = "probe"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
LANGUAGE_CODE = "en-gb"
DATABASES = {
    "default": database(os.environ.get("JOBRAIL_TEST_DATABASE_URL", "")) | json.loads(os.environ["PROBE_DATABASE"])
}
INSTALLED_APPS = ["jobrail_django", "tests.acceptance.harness.probe"]
JOBRAIL = json.loads(os.environ["PROBE_JOBRAIL"])
