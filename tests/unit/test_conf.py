"""The JOBRAIL setting: what is accepted, what is refused with which text, and when it is read again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobrail_django import conf
from jobrail_django.address import mask_url
from jobrail_django.backoff import Backoff
from jobrail_django.errors import ConfigurationError, UnknownQueue

URL = "redis://127.0.0.1:6379/9"
CACHE = "django_redis.cache.RedisCache"


def entry(location, backend=CACHE, **options):
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


@pytest.fixture
def use(settings):
    """Set JOBRAIL (with a working REDIS unless given) and CACHES."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

    def change(caches=None, **values):
        if caches is not None:
            settings.CACHES = caches
        settings.JOBRAIL = {"REDIS": URL, **values}

    return change


def test_defaults_are_those_of_the_design(use):
    use()

    made = conf.get_settings()

    assert (made.prefix, dict(made.queues), made.database) == ("jobrail", {"default": {}}, "default")
    assert (made.lease_ms, made.reap_ms, made.grace_s) == (30_000, 1_000, 30.0)
    assert (made.max_attempts, made.max_losses, made.backoff, made.timeout_s) == (3, 3, Backoff(), None)
    assert (made.max_payload_bytes, made.redis_timeout_s) == (1024 * 1024, 1.0)


def test_values_are_taken_in_their_units(use):
    use(
        LEASE_SECONDS=6,
        REAP_SECONDS=0.5,
        GRACE_SECONDS=timedelta(minutes=1),
        TIMEOUT_SECONDS=timedelta(hours=25),
        BACKOFF=7,
        QUEUES={"mail": {}, "slow": {}},
    )

    made = conf.get_settings()

    assert (made.lease_ms, made.reap_ms, made.grace_s, made.timeout_s) == (6_000, 500, 60.0, 90_000.0)
    assert made.backoff == Backoff(base=7)
    assert list(made.queues) == ["mail", "slow"]


def test_settings_are_read_once_and_again_after_a_change(use):
    use(MAX_ATTEMPTS=5)
    first = conf.get_settings()
    assert conf.get_settings() is first

    use(MAX_ATTEMPTS=6)

    assert (first.max_attempts, conf.get_settings().max_attempts) == (5, 6)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"LEESE_SECONDS": 3}, r"Unknown setting JOBRAIL\['LEESE_SECONDS'\]; did you mean 'LEASE_SECONDS'\?"),
        ({"prefix": "x"}, r"did you mean 'PREFIX'\?"),
        ({"LEASE_SECONDS": 0}, r"JOBRAIL\['LEASE_SECONDS'\]: 0 is out of range; give at least 1 and at most 3600"),
        ({"LEASE_SECONDS": 100_000}, "100000 is out of range"),
        ({"LEASE_SECONDS": "30"}, "'30' is not a duration"),
        ({"REAP_SECONDS": 31}, r"\(31\) is larger than LEASE_SECONDS \(30\)"),
        ({"TIMEOUT_SECONDS": -1}, r"JOBRAIL\['TIMEOUT_SECONDS'\]: -1 is out of range; give above 0"),
        ({"GRACE_SECONDS": float("nan")}, "nan is out of range"),
        ({"MAX_ATTEMPTS": 0}, "0 must be a whole number from 1"),
        ({"MAX_ATTEMPTS": True}, "True must be a whole number"),
        ({"MAX_LOSSES": 2.0}, "2.0 must be a whole number"),
        ({"MAX_PAYLOAD_BYTES": 2**40}, "must be a whole number from 1 to 67108864"),
        ({"BACKOFF": "fast"}, "'fast' is not a backoff"),
        ({"PREFIX": "a{b}"}, r"'a\{b\}' must be 1 to 64"),
        ({"QUEUES": "mail"}, r"'mail' must be a list of names, as in"),
        ({"QUEUES": []}, "must be a list of names"),
        ({"QUEUES": ["a b"]}, "'a b' cannot name a queue"),
        ({"QUEUES": {"a": {"weight": 2}}}, "unknown option 'weight' of queue 'a'"),
        ({"DATABASE": "defualt"}, r"no alias in DATABASES; did you mean 'default'\?"),
        ({"TIMEZONE": "Mars/Base"}, "'Mars/Base' is not a known time zone"),
        ({"DURABLE": True}, r"JOBRAIL\['DURABLE'\] is not supported yet in this version"),
        ({"DURABLE": "no"}, "'no' must be True or False"),
        ({"SCHEDULES": {"nightly": {}}}, r"JOBRAIL\['SCHEDULES'\] is not supported yet"),
        ({"REDIS": 6379}, "a value of type int must be a text"),
    ],
)
def test_impossible_setting_is_refused(use, values, text):
    """SCENARIOS B8 and E24: every one is an error with a text; nothing is set to another value in silence."""
    use(**values)

    with pytest.raises(ConfigurationError, match=text):
        conf.get_settings()


def test_all_problems_are_named_at_once(use):
    use(MAX_ATTEMPTS=0, MAX_LOSSES=0)

    with pytest.raises(ConfigurationError, match=r"MAX_ATTEMPTS.*MAX_LOSSES"):
        conf.get_settings()


def test_setting_that_is_no_dict_is_refused(settings):
    settings.JOBRAIL = ["redis"]

    with pytest.raises(ConfigurationError, match="JOBRAIL is a list; expected a dict"):
        conf.get_settings()


def test_unset_redis_is_an_error_only_where_redis_is_needed(settings):
    settings.JOBRAIL = {}

    assert conf.get_settings().redis is None
    with pytest.raises(ConfigurationError, match=r"JOBRAIL\['REDIS'\] is not set; write the alias"):
        conf.redis_location()


@pytest.mark.parametrize("url", [URL, "rediss://h:1/0", "unix:///run/redis.sock?db=3", "redis://u:p@[::1]:7/2"])
def test_url_is_taken_as_it_is(use, url):
    use(REDIS=url)

    assert conf.redis_location().url == url


@pytest.mark.parametrize(
    ("value", "folder"),
    [("embedded", "/srv/site/.jobrail"), ("embedded:///var/x", "/var/x"), ("embedded://rel", "rel")],
)
def test_embedded_names_a_folder(use, settings, value, folder):
    settings.BASE_DIR = "/srv/site"
    use(REDIS=value)

    location = conf.redis_location()

    assert (location.embedded, location.folder, location.url) == (True, folder, "")


def test_alias_gives_the_primary_and_its_credentials(use):
    pool = {"ssl_cert_reqs": "none", "max_connections": 5, "db": 4}
    options = {"PASSWORD": "s3cret", "USERNAME": "app", "CONNECTION_POOL_KWARGS": pool, "SOCKET_TIMEOUT": 9}
    use({"jobs": entry(["redis://a:1", "redis://b:1"], **options)}, REDIS="jobs")

    location = conf.redis_location()

    assert location.url == "redis://a:1"
    assert location.options == {"ssl_cert_reqs": "none", "username": "app", "password": "s3cret", "db": 4}


@pytest.mark.parametrize(
    ("caches", "redis", "text"),
    [
        ({}, "jobs", r"'jobs' is neither a URL nor an alias in CACHES \(aliases: none\)"),
        ({"jobrail": entry(URL)}, "jobrial", r"did you mean 'jobrail'\?"),
        (
            {"jobs": entry("x", "django.core.cache.backends.locmem.LocMemCache")},
            "jobs",
            "must be served by 'django_redis",
        ),
        ({"jobs": entry("")}, "jobs", "without a LOCATION"),
        (
            {"jobs": entry(URL, CLIENT_CLASS="django_redis.client.SentinelClient")},
            "jobs",
            "uses sentinel, which is not",
        ),
        ({"jobs": entry(URL, SENTINELS=[("h", 1)])}, "jobs", "uses sentinel"),
        ({}, "redis+sentinel://a,b/main", r"redis\+sentinel:// is not supported yet in this version"),
        ({}, "redis+cluster://a:1", "is not supported yet"),
        ({}, "reddis://a:1", r"did you mean 'redis'\?"),
        ({}, "redis://a:port", "has no valid port"),
        ({}, "redis://a:1/zero", "has the database number 'zero'"),
        ({}, "unix://", "names no socket"),
    ],
)
def test_unusable_redis_is_refused(use, caches, redis, text):
    use(caches, REDIS=redis)

    for ask in (conf.get_settings, conf.redis_location):
        with pytest.raises(ConfigurationError, match=text):
            ask()


@pytest.mark.parametrize(
    ("redis", "cache"),
    [
        (URL, entry("redis://localhost:6379/9")),
        (URL, entry("redis://u:p@localhost/9", "django.core.cache.backends.redis.RedisCache")),
        ("redis://LOCALHOST", entry(["redis://[::1]:6379/0"])),
        ("unix:///run/r.sock?db=2", entry("unix:///run/r.sock", db=2)),
        ("redis://h", entry("redis://a,redis://h")),
    ],
)
def test_cache_on_the_same_database_is_refused(use, redis, cache):
    use({"default": cache}, REDIS=redis)

    with pytest.raises(ConfigurationError, match="same server and database number as the cache 'default'"):
        conf.get_settings()


def test_cache_on_another_database_is_fine(use):
    use({"default": entry("redis://127.0.0.1:6379/1"), "jobs": entry(URL)}, REDIS="jobs")

    assert conf.problems(conf.raw_settings()) == []


def test_default_cache_as_redis_is_a_warning(use):
    use({"default": entry(URL)}, REDIS="default")

    (problem,) = conf.problems(conf.raw_settings())

    assert (problem.id, problem.is_error) == ("jobrail.W001", False)
    assert conf.get_settings().redis == "default"


def test_setting_without_effect_is_a_warning(use):
    use(KEEP_DAYS=30)

    (problem,) = conf.problems(conf.raw_settings())

    assert (problem.id, problem.key) == ("jobrail.W003", "KEEP_DAYS")
    assert conf.get_settings().keep_days == 30


def test_queue_that_is_not_declared_is_unknown(use):
    use(QUEUES=["mail", "slow"])
    made = conf.get_settings()

    assert made.require_queue("mail") == "mail"
    with pytest.raises(UnknownQueue, match=r"Unknown queue 'mial'; did you mean 'mail'\?.*declares 'mail', 'slow'"):
        made.require_queue("mial")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://:s3cret@h:1/0", "redis://***@h:1/0"),
        ("redis://u:a@s3cret/@h", "redis://***@h"),
        ("at rediss://u:s3cret@h/0?ssl_password=s3cret&db=1.", "at rediss://***@h/0?ssl_password=***&db=1."),
        ("unix://u:s3cret@/run/r.sock", "unix://***@/run/r.sock"),
        ("redis://h?password=s3cret", "redis://h?password=***"),
        ("'redis://:s3cret@h' and 'redis://h2'", "'redis://***@h' and 'redis://h2'"),
        ("redis://h:1/0", "redis://h:1/0"),
    ],
)
def test_secrets_are_hidden_in_urls(text, expected):
    assert mask_url(text) == expected


@pytest.mark.parametrize(
    "redis",
    ["redis://u:s3cret@h:x/0", "redis://u:s3cret@h/zero", "htp://u:s3cret@h", "redis+cluster://:s3cret@h", "jobs"],
)
def test_no_secret_is_in_any_text(use, redis):
    """SCENARIOS N4: neither in an error, nor in a repr."""
    use({"jobs": entry("redis://:s3cret@h:x", PASSWORD="s3cret")}, REDIS=redis)

    shown = repr(conf.problems(conf.raw_settings()))

    assert conf.problems(conf.raw_settings())
    assert "s3cret" not in shown


def test_no_secret_is_in_the_repr_of_settings_and_location(use):
    use({"jobs": entry("redis://:s3cret@h:1", PASSWORD="s3cret")}, REDIS="jobs")
    location = conf.redis_location()
    use(REDIS="redis://:s3cret@h:1/5")

    shown = [repr(location), str(location), repr(conf.get_settings()), str(conf.redis_location())]

    assert "s3cret" not in "".join(shown)
    assert str(location) == "redis://***@h:1"
