"""The admin: what it shows, what it does, who may, and that nothing from data gets out of its quotes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobrail_django import registry
from jobrail_django.admin.jobs import PAGE, id_range
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import WorkerInfo
from jobrail_django.models import Attempt, Job, Queue
from jobrail_django.upkeep.mirror import Mirror
from jobrail_django.upkeep.workers import WorkerRegister

from .rail import Rail, error_record

pytestmark = [pytest.mark.django_db, pytest.mark.db_vendor]

LIST = "/admin/jobrail/job/"
TOKEN = "xss7f3a"
EVIL = f"<script>alert('{TOKEN}')</script>\"'><img src=x onerror={TOKEN}>"


@pytest.fixture
def rail(broker: Broker) -> Rail:
    return Rail(broker)


@pytest.fixture
def mirror(broker: Broker) -> Mirror:
    return Mirror(broker, ["default", "mail"], using="default")


@pytest.fixture
def boss(client: Client) -> Client:
    """A client that is logged in as a superuser."""
    client.force_login(User.objects.create_superuser("boss"))
    return client


def staff(*codenames: str) -> Client:
    """A client of a member of staff with exactly these permissions."""
    user = User.objects.create_user("staff-" + "-".join(codenames), is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames, content_type__app_label="jobrail"))
    client = Client()
    client.force_login(user)
    return client


def page_of(job_id: str) -> str:
    return reverse("admin:jobrail_job_change", args=[job_id])


def do(client: Client, verb: str, job_id: str, seen: str, **extra: object):  # type: ignore[no-untyped-def]
    """Press a button of a job's page, which showed the state `seen`."""
    return client.post(reverse(f"admin:jobrail_job_{verb}", args=[job_id]), {"seen": seen}, follow=True, **extra)


def messages_of(response) -> list[str]:  # type: ignore[no-untyped-def]
    return [str(message) for message in response.context["messages"]]


def listed(response) -> list[str]:  # type: ignore[no-untyped-def]
    """Ids of the jobs on a page of the list, from top to bottom."""
    return re.findall(r'class="jobrail-id" title="([0-9a-f-]{36})"', response.content.decode())


def state_in_redis(broker: Broker, job_id: str) -> str:
    record = broker.get("default", job_id)
    assert record is not None
    return record.state


def mirror_all(mirror: Mirror) -> None:
    while mirror.run_once().more:
        pass


class TestList:
    def test_shows_each_job_with_its_columns(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        (job_id,) = rail.enqueue(task="shop.tasks.send")
        rail.fail(verb="retry")
        mirror.run_once()

        response = boss.get(LIST)

        text = response.content.decode()
        assert listed(response) == [job_id]
        assert page_of(job_id) in text
        assert '<span class="jobrail-state jobrail-retrying">retrying</span>' in text
        assert "shop.tasks.send" in text and "1 of 3" in text and "0badcafe" in text
        assert "These rows are up to date with Redis." in text

    def test_says_how_far_the_mirror_is_behind(self, rail: Rail, boss: Client) -> None:
        (job_id,) = rail.enqueue()
        rail.broker.client.zadd(rail.broker.keys("default").changed, {job_id: 1})

        text = boss.get(LIST).content.decode()

        assert re.search(r"The mirror is \d+ d behind Redis, with 1 job to store\.", text)

    def test_no_count_no_big_column_and_as_many_queries_for_one_row_as_for_a_page_j1_j2(
        self, rail: Rail, mirror: Mirror, boss: Client
    ) -> None:
        rail.enqueue()
        mirror_all(mirror)
        with CaptureQueriesContext(connection) as one:
            boss.get(LIST)
        rail.enqueue(PAGE + 5)
        mirror_all(mirror)

        with CaptureQueriesContext(connection) as many:
            response = boss.get(LIST)

        assert len(listed(response)) == PAGE
        assert len(many) == len(one) <= 4
        sql = " ".join(query["sql"] for query in many)
        assert "COUNT(" not in sql
        for column in ("payload", "result", "error_message"):
            assert f"jobrail_job{column}" not in sql.replace('"."', "").replace("`.`", "")

    def test_list_of_huge_jobs_is_small_j2(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        payload = json.dumps({"v": 1, "task": "big", "args": ["x" * 1_000_000], "kwargs": {}, "options": {}})
        rail.enqueue_payloads([payload.encode()] * 10)
        rail.fail(10, error_record("m" * 4_000, traceback="t" * 40_000))
        mirror_all(mirror)

        response = boss.get(LIST)

        assert len(listed(response)) == 10
        assert len(response.content) < 60_000

    def test_pages_by_key_show_every_job_once_in_both_directions(
        self, rail: Rail, mirror: Mirror, boss: Client
    ) -> None:
        ids = sorted(rail.enqueue(2 * PAGE + 7), reverse=True)
        mirror_all(mirror)

        older = [boss.get(LIST)]
        while link := older[-1].context_data["cl"].older_link:
            older.append(boss.get(LIST + link))
        newer = [older[-1]]
        while link := newer[-1].context_data["cl"].newer_link:
            newer.append(boss.get(LIST + link))

        assert [len(listed(page)) for page in older] == [PAGE, PAGE, 7]
        assert sum(map(listed, older), []) == ids
        assert sum(map(listed, reversed(newer)), []) == ids

    def test_pages_keep_filter_and_search(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        Rail(rail.broker, "mail").enqueue(3)
        wanted = rail.enqueue(PAGE + 1)
        mirror_all(mirror)

        first = boss.get(LIST + "?queue=default&q=shop")
        second = boss.get(LIST + first.context_data["cl"].older_link)

        assert set(listed(first) + listed(second)) == set(wanted)
        assert second.context_data["cl"].query == "shop"

    @pytest.mark.parametrize("query", ["older=x", "newer=", "older=1&newer=2", "nonsense=1", "p=7", "o=1.2", "all="])
    def test_odd_addresses_are_answered(self, rail: Rail, mirror: Mirror, boss: Client, query: str) -> None:
        rail.enqueue()
        mirror.run_once()

        response = boss.get(f"{LIST}?{query}", follow=True)

        assert response.status_code == 200

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("state=dead", {"dead"}),
            ("state=scheduled", {"scheduled"}),
            ("state=no%00such", set()),
            ("queue=mail", {"mail"}),
            ("queue=default", {"dead", "scheduled", "ready"}),
            ("task=shop.other", {"scheduled"}),
            ("task=shop", set()),
            ("state=dead&queue=mail", set()),
        ],
    )
    def test_filters(self, rail: Rail, mirror: Mirror, boss: Client, query: str, expected: set[str]) -> None:
        ids = {"dead": rail.enqueue()[0]}
        rail.fail()
        ids["scheduled"] = rail.enqueue(task="shop.other", delay_ms=60_000)[0]
        ids["ready"] = rail.enqueue()[0]
        ids["mail"] = Rail(rail.broker, "mail").enqueue()[0]
        mirror_all(mirror)

        response = boss.get(f"{LIST}?{query}")

        assert response.status_code == 200
        assert set(listed(response)) == {ids[name] for name in expected}

    def test_filter_offers_queues_of_the_settings_and_the_current_value(self, boss: Client, broker: Broker) -> None:
        text = boss.get(LIST + "?queue=old-queue").content.decode()

        for queue in ("default", "mail", "old-queue"):
            assert f"queue={queue}" in text


class TestSearch:
    @pytest.fixture
    def jobs(self, rail: Rail, mirror: Mirror) -> dict[str, str]:
        found = {
            task: rail.enqueue(task=task)[0]
            for task in ("acme.tasks.send_receipt", "acme.tasks.send_invoice", "crm.sync", "100%_sure.x")
        }
        mirror.run_once()
        return found

    @pytest.mark.parametrize(
        ("term", "tasks"),
        [
            ("acme.tasks.send_receipt", {"acme.tasks.send_receipt"}),
            ("acme.tasks.send", {"acme.tasks.send_receipt", "acme.tasks.send_invoice"}),
            (" crm ", {"crm.sync"}),
            ("100%_", {"100%_sure.x"}),
            ("%", set()),
            ("receipt", set()),
            ("cafe", set()),
            ("x" * 300, set()),
        ],
    )
    def test_by_beginning_of_the_task(self, jobs: dict[str, str], boss: Client, term: str, tasks: set[str]) -> None:
        response = boss.get(LIST, {"q": term})

        assert set(listed(response)) == {jobs[task] for task in tasks}

    def test_by_a_part_of_the_name_of_a_registered_task(
        self, jobs: dict[str, str], boss: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "_tasks", dict.fromkeys(["acme.tasks.send_receipt", "crm.sync"]))

        response = boss.get(LIST, {"q": "RECEIPT"})

        assert listed(response) == [jobs["acme.tasks.send_receipt"]]

    @pytest.mark.parametrize("length", [36, 35, 30, 24, 19, 14])
    def test_by_an_id_or_its_beginning(self, jobs: dict[str, str], boss: Client, length: int) -> None:
        job_id = jobs["crm.sync"]

        found = listed(boss.get(LIST, {"q": job_id[:length]}))

        assert job_id in found
        assert all(other.startswith(job_id[:length]) for other in found)

    @pytest.mark.parametrize("change", [str.upper, lambda text: text.replace("-", "")], ids=["upper", "no dashes"])
    def test_by_an_id_written_otherwise(self, jobs: dict[str, str], boss: Client, change) -> None:
        assert listed(boss.get(LIST, {"q": change(jobs["crm.sync"])})) == [jobs["crm.sync"]]

    def test_by_an_id_that_no_job_has(self, jobs: dict[str, str], boss: Client) -> None:
        assert listed(boss.get(LIST, {"q": str(uuid.uuid4())})) == []

    @pytest.mark.parametrize(
        ("term", "lowest", "highest"),
        [
            ("019a1b2c", "019a1b2c-0000-7000-8000-000000000000", "019a1b2c-ffff-7fff-bfff-ffffffffffff"),
            ("019A1B2C-3d4e-75", "019a1b2c-3d4e-7500-8000-000000000000", "019a1b2c-3d4e-75ff-bfff-ffffffffffff"),
            ("019a1b2c-3d4e-7567-9", "019a1b2c-3d4e-7567-9000-000000000000", "019a1b2c-3d4e-7567-9fff-ffffffffffff"),
            ("019a1b2c3d4e75679012", "019a1b2c-3d4e-7567-9012-000000000000", "019a1b2c-3d4e-7567-9012-ffffffffffff"),
        ],
    )
    def test_beginning_of_an_id_stands_for_ids_of_jobs_only(self, term: str, lowest: str, highest: str) -> None:
        assert id_range(term) == (uuid.UUID(lowest), uuid.UUID(highest))

    @pytest.mark.parametrize("term", ["1234567", "deadbeeg", "0" * 37, "shop.tasks", "", "0-1-2-3-4-5-6-7-" * 3])
    def test_what_is_no_beginning_of_an_id(self, term: str) -> None:
        assert id_range(term) is None


class TestJobPage:
    def test_shows_everything_of_a_job(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        (job_id,) = rail.enqueue(args=[7, {"é": [2**53 + 1, None]}], priority=5)
        rail.fail(verb="retry", error=error_record("row 7", kind="shop.errors.BadRow", traceback="Traceback\n  x.py"))
        mirror.run_once()
        now_ms = 1_800_000_000_000
        broker = rail.broker
        broker.beat(
            WorkerInfo(
                id="0badcafe",
                name="w",
                host="web-1",
                pid=1,
                queues=("default",),
                processes=1,
                threads=1,
                started_ms=now_ms,
                seen_ms=now_ms,
                version="0",
            ),
            60_000,
        )
        WorkerRegister(broker, using="default").run_once()

        text = boss.get(page_of(job_id)).content.decode()

        for expected in (
            job_id,
            "shop.tasks.send",
            "1 of 3",
            "as told",
            "9007199254740993",
            "&quot;é&quot;",
            "shop.errors.BadRow",
            "row 7",
            "Traceback\n  x.py",
            "0badcafe on web-1",
            "0.020 s",
            "failed",
        ):
            assert expected in text, expected

    def test_long_values_show_head_and_tail_and_can_be_downloaded_j2(
        self, rail: Rail, mirror: Mirror, boss: Client
    ) -> None:
        payload = json.dumps(
            {"v": 1, "task": "big", "args": ["a" * 1_000_000 + "THE END"], "kwargs": {}, "options": {}}
        )
        (job_id,) = rail.enqueue_payloads([payload.encode()])
        rail.succeed(result=json.dumps("r" * 1_000_000).encode())
        mirror_all(mirror)

        response = boss.get(page_of(job_id))
        download = boss.get(reverse("admin:jobrail_job_payload", args=[job_id]))

        text = response.content.decode()
        assert len(text) < 60_000
        assert "characters cut …" in text and "THE END" in text
        assert download.content == payload.encode()
        assert download["Content-Disposition"] == f'attachment; filename="{job_id}-payload.txt"'
        assert download["Content-Type"].startswith("text/plain")
        assert download["X-Content-Type-Options"] == "nosniff"

    def test_download_of_what_is_not_there_is_404(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()

        assert boss.get(reverse("admin:jobrail_job_result", args=[job_id])).status_code == 404
        assert boss.get(reverse("admin:jobrail_job_payload", args=[uuid.uuid4()])).status_code == 404

    def test_many_attempts_with_huge_errors_are_answered_with_the_latest_k4(
        self, rail: Rail, mirror: Mirror, boss: Client
    ) -> None:
        (job_id,) = rail.enqueue(max_attempts=1000)
        for turn in range(60):
            rail.fail(verb="retry", error=error_record(f"error {turn} " + "m" * 4_000, traceback="t" * 48_000))
            rail.broker.retry("default", job_id, 1)
            mirror.run_once()

        response = boss.get(page_of(job_id))

        text = response.content.decode()
        assert Attempt.objects.count() == 60
        assert "error 59" in text and "error 10" in text and "error 9 " not in text
        assert "Earlier attempts are not shown." in text
        assert len(text) < 1_500_000

    @pytest.mark.parametrize("object_id", ["not-an-id", "0190a1b2-0000-7000-8000-000000000000"])
    def test_unknown_job_leads_back_with_a_message(self, boss: Client, broker: Broker, object_id: str) -> None:
        response = boss.get(page_of(object_id), follow=True)

        assert response.status_code == 200
        assert messages_of(response) == [f"There is no row of a job {object_id!r}."]

    def test_row_that_redis_does_not_hold_says_so_j6(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()
        rail.broker.client.delete(rail.broker.keys("default").job(job_id))

        text = boss.get(page_of(job_id)).content.decode()
        response = do(boss, "cancel", job_id, "ready")

        assert "Not in Redis" in text
        assert response.status_code == 200
        assert "cannot be cancelled" in messages_of(response)[0]

    def test_row_that_is_behind_says_so_and_offers_what_redis_allows(
        self, rail: Rail, mirror: Mirror, boss: Client
    ) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()
        rail.fail()

        response = boss.get(page_of(job_id))

        assert "the job is dead there" in response.content.decode()
        assert [verb.name for verb, _ in response.context_data["verbs"]] == ["retry"]

    def test_what_redis_holds_is_no_job_j6(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()
        rail.broker.client.hset(rail.broker.keys("default").job(job_id), "limits", "many")

        response = boss.get(page_of(job_id))

        assert response.status_code == 200
        assert "cannot be read" in response.content.decode()

    def test_live_job_without_a_row_comes_back_at_its_next_change_j6(
        self, rail: Rail, mirror: Mirror, boss: Client
    ) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()
        Job.objects.all().delete()

        empty = boss.get(LIST)
        rail.claim()
        mirror.run_once()

        assert listed(empty) == []
        assert listed(boss.get(LIST)) == [job_id]


class TestRedisAway:
    def test_all_pages_are_answered_and_say_so_j6(self, rail: Rail, mirror: Mirror, boss: Client, settings) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()
        settings.JOBRAIL = {**settings.JOBRAIL, "REDIS": "redis://:secret-word@127.0.0.1:1/0"}

        pages = [boss.get(address) for address in (LIST, page_of(job_id), "/admin/jobrail/queue/")]
        pressed = do(boss, "cancel", job_id, "ready")

        for page in [*pages, pressed]:
            assert page.status_code == 200
            assert "Redis unreachable" in page.content.decode()
            assert "secret-word" not in page.content.decode()
        assert any("not available" in text for text in messages_of(pressed))
        assert LogEntry.objects.count() == 0

    def test_actions_on_several_jobs_stop_at_once(self, rail: Rail, mirror: Mirror, boss: Client, settings) -> None:
        ids = rail.enqueue(5)
        mirror.run_once()
        settings.JOBRAIL = {**settings.JOBRAIL, "REDIS": "redis://127.0.0.1:1/0"}

        response = confirm(boss, "cancel", ids, ["ready"] * 5)

        (text,) = messages_of(response)
        assert "Nothing was done to 5 jobs." in text


class TestVerbs:
    @pytest.mark.parametrize(
        ("state", "verb", "after"),
        [
            ("ready", "cancel", "cancelled"),
            ("scheduled", "cancel", "cancelled"),
            ("retrying", "cancel", "cancelled"),
            ("running", "cancel", "running"),
            ("dead", "retry", "ready"),
            ("cancelled", "retry", "ready"),
            ("retrying", "retry", "ready"),
        ],
    )
    def test_what_the_state_allows_is_done_and_logged_with_the_user_j9(
        self, rail: Rail, mirror: Mirror, boss: Client, state: str, verb: str, after: str
    ) -> None:
        job_id = job_in(rail, state)
        mirror.run_once()

        response = do(boss, verb, job_id, state)

        assert state_in_redis(rail.broker, job_id) == after
        (text,) = messages_of(response)
        assert text.endswith("The rows follow with the mirror.")
        entry = LogEntry.objects.get()
        assert (entry.user.username, entry.object_id) == ("boss", job_id)
        assert entry.get_change_message() in {"Retried.", "Cancelled.", "Asked to stop: it is running."}

    @pytest.mark.parametrize(
        ("state", "verb"),
        [
            ("ready", "retry"),
            ("scheduled", "retry"),
            ("running", "retry"),
            ("succeeded", "retry"),
            ("succeeded", "cancel"),
            ("dead", "cancel"),
        ],
    )
    def test_what_the_state_does_not_allow_has_no_button_and_no_effect_j9(
        self, rail: Rail, mirror: Mirror, boss: Client, state: str, verb: str
    ) -> None:
        job_id = job_in(rail, state)
        mirror.run_once()

        page = boss.get(page_of(job_id))
        response = do(boss, verb, job_id, state)

        assert verb not in [offered.name for offered, _ in page.context_data["verbs"]]
        assert state_in_redis(rail.broker, job_id) == state
        assert "cannot be" in messages_of(response)[0]
        assert LogEntry.objects.count() == 0

    @pytest.mark.parametrize("seen", ["scheduled", "running", ""])
    def test_page_that_is_out_of_date_gets_a_message_and_no_effect_j9(
        self, rail: Rail, mirror: Mirror, boss: Client, seen: str
    ) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()

        response = do(boss, "cancel", job_id, seen)

        assert "is ready now: look again" in messages_of(response)[0]
        assert state_in_redis(rail.broker, job_id) == "ready"
        assert LogEntry.objects.count() == 0

    @pytest.mark.parametrize("verb", ["retry", "cancel"])
    def test_get_changes_nothing_j8(self, rail: Rail, mirror: Mirror, boss: Client, verb: str) -> None:
        job_id = job_in(rail, "retrying")
        mirror.run_once()

        response = boss.get(reverse(f"admin:jobrail_job_{verb}", args=[job_id]), {"seen": "retrying"})

        assert response.status_code == 405
        assert state_in_redis(rail.broker, job_id) == "retrying"

    @pytest.mark.parametrize("verb", ["retry", "cancel"])
    def test_post_without_a_csrf_token_is_refused_j8(self, rail: Rail, mirror: Mirror, verb: str) -> None:
        job_id = job_in(rail, "retrying")
        mirror.run_once()
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(User.objects.create_superuser("boss2"))

        button = do(strict, verb, job_id, "retrying")
        action = strict.post(LIST, {"action": f"{verb}_selected", "_selected_action": job_id, "confirmed": "yes"})

        assert (button.status_code, action.status_code) == (403, 403)
        assert state_in_redis(rail.broker, job_id) == "retrying"


class TestActions:
    def test_first_a_page_that_asks_then_exactly_those_jobs_j8(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        dead = rail.enqueue(7)
        rail.fail(7)
        others = rail.enqueue(93)
        mirror_all(mirror)
        address = f"{LIST}?state=dead"

        asked = boss.post(address, {"action": "retry_selected", "_selected_action": dead, "select_across": "1"})
        untouched = {state_in_redis(rail.broker, job_id) for job_id in dead}
        done = boss.post(address, hidden_fields(asked.content.decode()), follow=True)

        assert "Retry these 7 jobs?" in asked.content.decode()
        assert untouched == {"dead"}
        assert {state_in_redis(rail.broker, job_id) for job_id in [*dead, *others]} == {"ready"}
        assert [rail.broker.get("default", job_id).round for job_id in [*dead, *others]] == [2] * 7 + [1] * 93
        assert messages_of(done) == ["Retry: done for 7 jobs. The rows follow with the mirror."]
        assert sorted(LogEntry.objects.values_list("object_id", flat=True)) == sorted(dead)

    def test_each_job_is_judged_by_itself(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        good, over = rail.enqueue()[0], job_in(rail, "succeeded")
        mirror_all(mirror)
        states = {str(pk): state for pk, state in Job.objects.values_list("pk", "state")}
        ids = list(states)

        response = confirm(boss, "cancel", ids, [states[job_id] for job_id in ids])

        cancelled = [job_id for job_id in ids if states[job_id] == "ready"]
        assert {good, over} == set(ids)
        assert [state_in_redis(rail.broker, job_id) for job_id in cancelled] == ["cancelled"]
        texts = messages_of(response)
        assert len(texts) == 2 and any("succeeded" in text for text in texts)

    def test_more_than_a_page_is_refused_whole(self, rail: Rail, mirror: Mirror, boss: Client) -> None:
        ids = rail.enqueue(PAGE + 1)
        mirror_all(mirror)

        response = boss.post(
            LIST, {"action": "cancel_selected", "_selected_action": ids[:1], "select_across": "1"}, follow=True
        )

        assert messages_of(response) == [f"Choose {PAGE} jobs at most; nothing was done."]
        assert state_in_redis(rail.broker, ids[0]) == "ready"

    def test_job_that_left_the_list_since_the_page_asked_is_left_alone(
        self, rail: Rail, mirror: Mirror, boss: Client
    ) -> None:
        ids = rail.enqueue(2)
        rail.fail(2)
        mirror.run_once()
        rail.broker.retry("default", ids[0], 1)
        mirror.run_once()

        response = confirm(boss, "retry", ids, ["dead", "dead"], address=f"{LIST}?state=dead")

        assert "1 of the jobs have left this list" in " ".join(messages_of(response))
        assert {state_in_redis(rail.broker, job_id) for job_id in ids} == {"ready"}
        assert rail.broker.get("default", ids[0]).round == 2


class TestPermissions:
    """Exactly this: view shows, retry and cancel act for those who may also view, nothing else changes anything."""

    READS = ("", "{id}/change/", "{id}/history/", "{id}/payload.txt")

    def test_anonymous_is_sent_to_the_login_j7(self, rail: Rail, mirror: Mirror, client: Client) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()

        for part in (*self.READS, "{id}/retry/", "add/"):
            response = client.get(LIST + part.format(id=job_id))
            assert response.status_code == 302 and "/login/" in response["Location"], part
        assert "/login/" in client.post(f"{LIST}{job_id}/cancel/", {"seen": "ready"})["Location"]
        assert state_in_redis(rail.broker, job_id) == "ready"

    @pytest.mark.parametrize(
        ("codenames", "reads", "verbs"),
        [
            ((), False, ()),
            (("view_queue", "view_worker"), False, ()),
            (("retry_job", "cancel_job"), False, ()),
            (("view_job",), True, ()),
            (("view_job", "retry_job"), True, ("retry",)),
            (("view_job", "cancel_job"), True, ("cancel",)),
            (("view_job", "retry_job", "cancel_job"), True, ("retry", "cancel")),
        ],
        ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
    )
    def test_matrix_j7(
        self, rail: Rail, mirror: Mirror, codenames: Sequence[str], reads: bool, verbs: Sequence[str]
    ) -> None:
        jobs = {verb: job_in(rail, "retrying") for verb in ("retry", "cancel")}
        mirror_all(mirror)
        user = staff(*codenames)
        some_id = jobs["retry"]

        for part in self.READS:
            assert user.get(LIST + part.format(id=some_id)).status_code == (200 if reads else 403), part
        assert ("/admin/jobrail/job/" in user.get("/admin/").content.decode()) is reads
        for part in ("add/", "{id}/delete/"):
            assert user.get(LIST + part.format(id=some_id)).status_code == 403, part
            assert user.post(LIST + part.format(id=some_id), {"post": "yes"}).status_code == 403, part
        assert user.post(f"{LIST}{some_id}/change/", {"payload": "{}"}).status_code == 403
        for verb, job_id in jobs.items():
            shown = user.get(f"{LIST}{job_id}/change/").content.decode()
            assert (f"{job_id}/{verb}/" in shown) is (verb in verbs)
            assert (f"{verb}_selected" in user.get(LIST).content.decode()) is (verb in verbs)
            confirm(user, verb, [job_id], ["stale"])
            response = do(user, verb, job_id, "retrying")
            assert response.status_code == (200 if verb in verbs else 403)
            assert (state_in_redis(rail.broker, job_id) != "retrying") is (verb in verbs)
        assert Job.objects.count() == 2

    def test_action_posted_without_its_permission_has_no_effect_j7(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        mirror.run_once()

        confirm(staff("view_job", "retry_job"), "cancel", [job_id], ["ready"])

        assert state_in_redis(rail.broker, job_id) == "ready"

    @pytest.mark.parametrize("model", ["queue", "worker"])
    def test_queues_and_workers_are_shown_to_those_who_may_and_changed_by_nobody_j7(
        self, rail: Rail, mirror: Mirror, boss: Client, model: str
    ) -> None:
        rail.enqueue()
        mirror.run_once()
        Queue.objects.get(name="default")

        assert boss.get(f"/admin/jobrail/{model}/").status_code == 200
        assert boss.get(f"/admin/jobrail/{model}/add/").status_code == 403
        assert boss.post("/admin/jobrail/queue/default/delete/", {"post": "yes"}).status_code == 403
        assert boss.post("/admin/jobrail/queue/default/change/", {"paused": "on"}).status_code == 403
        assert staff("view_job").get(f"/admin/jobrail/{model}/").status_code == 403
        assert Queue.objects.get().paused is False


class TestEscaping:
    """N3: markup in every text that data can bring, on every page."""

    @pytest.fixture
    def evil(self, rail: Rail, mirror: Mirror) -> str:
        payload = {"v": 1, "task": EVIL, "args": [EVIL], "kwargs": {EVIL: EVIL}, "options": {}}
        job_id, _ = rail.enqueue_payloads([json.dumps(payload).encode()] * 2)
        rail.slot = f"{EVIL.replace(' ', '')}.0.0"
        rail.fail(error=error_record(EVIL, kind=EVIL, traceback=EVIL))
        rail.succeed(result=json.dumps(EVIL).encode())
        rail.broker.beat(
            WorkerInfo(
                id=EVIL[:60],
                name=EVIL,
                host=EVIL,
                pid=1,
                queues=(EVIL,),
                processes=1,
                threads=1,
                started_ms=1,
                seen_ms=1,
                version=EVIL[:60],
            ),
            60_000,
        )
        mirror_all(mirror)
        WorkerRegister(rail.broker, using="default").run_once()
        Job.objects.filter(pk=job_id).update(queue=EVIL[:64], reason=EVIL)
        Queue.objects.filter(name="default").update(name=EVIL[:64])
        return job_id

    def test_no_page_lets_it_out_n3(self, evil: str, boss: Client, rail: Rail) -> None:
        other = str(Job.objects.exclude(pk=evil).get().pk)
        Job.objects.filter(pk=evil).update(state=EVIL[:16])

        responses = [
            boss.get("/admin/"),
            boss.get(LIST),
            boss.get(LIST, {"q": EVIL}),
            boss.get(LIST, {"queue": EVIL, "task": EVIL, "state": EVIL}),
            boss.get(page_of(evil)),
            boss.get(page_of(other)),
            do(boss, "retry", evil, EVIL),
            do(boss, "cancel", other, EVIL),
            boss.get(f"{LIST}{evil}/history/"),
            boss.get("/admin/jobrail/queue/"),
            boss.get("/admin/jobrail/worker/"),
            boss.post(LIST, {"action": "retry_selected", "_selected_action": [evil, other]}),
        ]

        for response in responses:
            text = response.content.decode()
            assert response.status_code == 200
            parsed = Page(text)
            assert not parsed.found, (response.request["PATH_INFO"], parsed.found)
        assert sum(TOKEN in response.content.decode() for response in responses) >= 8

    def test_own_pages_work_under_a_strict_content_security_policy_n3(self, evil: str, boss: Client) -> None:
        page = Page(boss.get(page_of(evil)).content.decode())
        asked = Page(boss.post(LIST, {"action": "retry_selected", "_selected_action": [evil]}).content.decode())

        for parsed in (page, asked):
            assert parsed.inline == []


class Page(HTMLParser):
    """Reads a page as a browser would and notes where the token became markup, and scripts and styles in the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self._within = tag if tag in ("script", "style") else ""
        if tag == "img" and names.get("src") == "x":
            self.found.append(self.get_starttag_text() or tag)
        self.found += [name for name in names if TOKEN in name or name == "onerror"]
        self.found += [str(value) for name, value in attrs if name == "href" and str(value).startswith("javascript")]
        self.inline += [name for name in names if name.startswith("on") or name == "style"]

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within and TOKEN in data:
            self.found.append(data)
        if self._within and data.strip():
            self.inline.append(data)


def job_in(rail: Rail, state: str) -> str:
    """Bring a new job into a state; the queue has no other job that is ready."""
    (job_id,) = rail.enqueue(**({"delay_ms": 60_000} if state == "scheduled" else {}))
    if state == "running":
        rail.claim()
    elif state == "succeeded":
        rail.succeed()
    elif state in ("dead", "retrying"):
        rail.fail(verb={"dead": "dead", "retrying": "retry"}[state])
    elif state == "cancelled":
        rail.broker.cancel("default", job_id, "for the test")
    assert state_in_redis(rail.broker, job_id) == state or state == "succeeded"
    return job_id


def hidden_fields(page: str) -> dict[str, list[str]]:
    """Return what the form of the page that asks would send."""
    fields: dict[str, list[str]] = {}
    for tag in re.findall(r'<input type="hidden"[^>]*>', page):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        assert name and value
        fields.setdefault(name[1], []).append(value[1])
    return fields


def confirm(client: Client, verb: str, ids: Sequence[str], seen: Sequence[str], *, address: str = LIST):  # type: ignore[no-untyped-def]
    """Answer yes to the page that asks about several jobs."""
    data = {"action": f"{verb}_selected", "_selected_action": list(ids), "seen": list(seen), "confirmed": "yes"}
    return client.post(address, data, follow=True)
