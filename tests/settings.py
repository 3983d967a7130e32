"""Settings of the test suite: SQLite by default, or the database that JOBRAIL_TEST_DATABASE_URL names."""

import os
import tempfile
from urllib.parse import unquote, urlsplit


def database(url):
    """Read `postgres://user:password@host:port/name` or `mysql://…`; "" = a SQLite file of this process."""
    if not url:
        folder = tempfile.gettempdir()
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.path.join(folder, f"jobrail-test-{os.getpid()}.sqlite3"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;", "timeout": 20},
            # In a file, because tests look at it from several threads.
            "TEST": {"NAME": os.path.join(folder, f"jobrail-test-{os.getpid()}.sqlite3")},
        }
    parts = urlsplit(url)
    engine = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql"}[parts.scheme]
    if engine == "mysql":
        import pymysql

        pymysql.version_info = (2, 2, 1, "final", 0)  # what Django asks of mysqlclient
        pymysql.install_as_MySQLdb()
    found = {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parts.path.strip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
    if engine == "mysql":
        found["OPTIONS"] = {"charset": "utf8mb4"}
        found["TEST"] = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_bin"}
    return found


SECRET_KEY = "tests"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": database(os.environ.get("JOBRAIL_TEST_DATABASE_URL", ""))}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "jobrail_django",
    "tests.probes",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Each test gets a server and a prefix of its own; see the fixture `jobrail`.
JOBRAIL = {"REDIS": "unix:///nonexistent/set-by-the-fixture.sock"}
