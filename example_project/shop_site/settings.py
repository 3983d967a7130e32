"""Settings of the example shop.

Everything the shop writes (database, uploads, thumbnails, receipts, mail, the embedded Redis) goes into one
folder, ``JOBRAIL_DEMO_DIR``; without it ``var/shop`` beside the example, which Git ignores.
"""

from __future__ import annotations

import os
from pathlib import Path

import django

BASE_DIR = Path(__file__).resolve().parent.parent
DEMO_DIR = Path(os.environ.get("JOBRAIL_DEMO_DIR") or BASE_DIR.parent / "var" / "shop")
DEMO_DIR.mkdir(parents=True, exist_ok=True)

#: Where this site answers, as the worker sees it: the partner it notifies is a view of this same site.
SITE_URL = os.environ.get("JOBRAIL_DEMO_URL") or "http://127.0.0.1:8000"

SECRET_KEY = os.environ.get("JOBRAIL_DEMO_SECRET_KEY") or "for this example on a developer's machine only"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "jobrail_django",
    "shop",
]

JOBRAIL = {
    "REDIS": os.environ.get("JOBRAIL_REDIS_URL") or f"embedded://{DEMO_DIR / 'redis'}",
    "PREFIX": os.environ.get("JOBRAIL_DEMO_PREFIX") or "jobrail-shop",
    "QUEUES": {"default": {}, "mail": {}, "pictures": {}, "webhooks": {}},
    # The default is 1; here everything shares one developer's machine.
    "REDIS_TIMEOUT_SECONDS": 5,
}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DEMO_DIR / "shop.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "shop.middleware.QueueAwayMiddleware",
]
ROOT_URLCONF = "shop_site.urls"
WSGI_APPLICATION = "shop_site.wsgi.application"
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

#: Mail is not sent: each message becomes a file in this folder.
MAIL_DIR = DEMO_DIR / "mail"
MAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": MAIL_BACKEND, "OPTIONS": {"file_path": MAIL_DIR}}}
else:
    EMAIL_BACKEND = MAIL_BACKEND
    EMAIL_FILE_PATH = MAIL_DIR
DEFAULT_FROM_EMAIL = "The Example Shop <shop@example.org>"

STATIC_URL = "static/"
MEDIA_URL = "media/"
#: Served to everybody: only files which the shop made itself.
MEDIA_ROOT = DEMO_DIR / "media"
#: Never served: files as people sent them.
UPLOAD_DIR = DEMO_DIR / "uploads"
#: Bytes; a larger file is refused by its form.
MAX_UPLOAD_BYTES = 5 * 1024 * 1024

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"jobrail_django": {"level": "INFO"}, "shop": {"level": "INFO"}},
}
