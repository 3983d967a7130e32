"""The example shop: its file reader, its jobs and its pages, with real jobs in a real Redis."""

from __future__ import annotations

import io
import runpy
import uuid
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest
from demo_parts.report import Report
from django.core import mail
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from PIL import Image
from shop import flaky, partner, tasks
from shop.models import BadRow, Order, Product, TrackedJob, Upload
from shop.order_file import COLUMNS, NotAnOrderFile, OrderRow, read_orders
from shop.pictures import BROKEN_SAMPLES, SAMPLES, BrokenPicture, make_thumbnail_file, picture_path
from shop.sample import ORDER_FILES, create_products
from shop.tracking import NOT_ARRIVED, current_states, track

from jobrail_django import Retry, get_job
from jobrail_django.models import Job

HEADER = ",".join(COLUMNS)
GOOD = "A-1,2024-02-29,王小明,x@example.org,MUG-001,2,12.50"


@pytest.fixture(autouse=True)
def shop_folder(settings, tmp_path: Path) -> Path:
    """Let the shop write below the test's own folder, and be the site."""
    settings.MEDIA_ROOT = tmp_path / "media"
    settings.UPLOAD_DIR = tmp_path / "uploads"
    settings.MAX_UPLOAD_BYTES = 5 * 1024 * 1024
    settings.ROOT_URLCONF = "shop_site.urls"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "shop.middleware.QueueAwayMiddleware"]
    return tmp_path


@pytest.fixture
def queues(jobrail) -> None:
    """Declare the shop's queues on the test's own server and prefix."""
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "QUEUES": ["default", "mail", "pictures", "webhooks"]}


@pytest.fixture
def order(db) -> Order:
    """Return an order a visitor made."""
    return Order.objects.create(
        number="W-1",
        placed_on="2024-01-02",
        customer="Jürgen <b>Groß</b>",
        email="j@example.org",
        sku="MUG-001",
        quantity=3,
        unit_price="12.50",
    )


def upload_of(folder: Path, content: bytes) -> Upload:
    """Return an upload with this content."""
    path = folder / "upload.csv"
    path.write_bytes(content)
    return Upload.objects.create(name="upload.csv", path=str(path))


# Reading a file of orders


def file_of(*lines: str, encoding: str = "utf-8") -> bytes:
    """Return a file with the header and these lines."""
    return "\n".join([HEADER, *lines, ""]).encode(encoding)


@pytest.mark.parametrize(
    ("encoding", "name"), [("utf-8", "UTF-8"), ("utf-8-sig", "UTF-8"), ("utf-16", "UTF-16"), ("cp1252", "Windows-1252")]
)
def test_read_orders_knows_the_encoding(encoding: str, name: str) -> None:
    found = read_orders(file_of("A-1,2024-02-29,Zoë Œuvrard,x@example.org,MUG-001,2,12.50", encoding=encoding))

    assert found.encoding == name
    assert found.orders == [OrderRow("A-1", "2024-02-29", "Zoë Œuvrard", "x@example.org", "MUG-001", 2, "12.50")]
    assert found.bad == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD.replace("A-1", ""), "order number '' is not like 'A-100001'"),
        (GOOD.replace("2024-02-29", "2023-02-29"), "date '2023-02-29' does not exist"),
        (GOOD.replace("2024-02-29", "29.2.24"), "date '29.2.24' is not like '2024-01-31'"),
        (GOOD.replace("王小明", " "), "customer name '' must have 1 to 120 characters"),
        (GOOD.replace("王小明", "x" * 121), f"customer name '{'x' * 40}' must have 1 to 120 characters"),
        (GOOD.replace("x@example.org", "x@"), "email 'x@' is not an address"),
        (GOOD.replace("MUG-001", "mug"), "article 'mug' is not like 'MUG-001'"),
        (GOOD.replace(",2,", ",-2,"), "quantity '-2' is not like '2'"),
        (GOOD.replace(",2,", ",٢,"), "quantity '٢' is not like '2'"),
        (GOOD.replace("12.50", "NaN"), "price 'NaN' is not like '12.50'"),
        (GOOD.replace("12.50", "-1"), "price '-1' is not like '12.50'"),
        (GOOD.replace("12.50", '"12,50"'), "price '12,50' is not like '12.50'"),
        (GOOD + ",more", "8 fields, expected 7"),
        ("A-1,2024-02-29", "2 fields, expected 7"),
        (GOOD.replace("王小明", '"open'), "not CSV: unexpected end of data"),
    ],
)
def test_read_orders_says_what_is_wrong_on_which_line(line: str, reason: str) -> None:
    found = read_orders(file_of("", line, GOOD.replace("A-1", "A-2")))

    assert [(bad.line, bad.reason) for bad in found.bad] == [(3, reason)]
    assert [order.number for order in found.orders] == ["A-2"]


def test_read_orders_keeps_the_first_of_two_lines_with_one_number() -> None:
    found = read_orders(file_of(GOOD, GOOD.replace("12.50", "13.50")))

    assert [(order.number, order.unit_price) for order in found.orders] == [("A-1", "12.50")]
    assert [(bad.line, bad.reason) for bad in found.bad] == [(3, "order A-1 stands on line 2 already")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The first line is ''"),
        (b"\x89PNG\r\n\x1a\n", "The first line is"),
        (b"number;date\n", "The first line is 'number;date'"),
        (b"\x81\x8d", "not text in UTF-8 or Windows-1252"),
        (b"\xff\xfe\x00", "not text in UTF-16"),
        (file_of(*["?"] * 1001), "More than 1000 lines are not orders; the last is line 1002: 1 fields, expected 7"),
    ],
    ids=["empty", "png", "other columns", "no text", "half a character", "bad throughout"],
)
def test_read_orders_refuses_what_is_no_file_of_orders(content: bytes, message: str) -> None:
    with pytest.raises(NotAnOrderFile, match=message):
        read_orders(content)


def test_shipped_files_have_the_same_orders_and_bad_rows() -> None:
    utf8, windows = (read_orders(file.read_bytes()) for file in ORDER_FILES)

    assert (utf8.encoding, windows.encoding) == ("UTF-8", "Windows-1252")
    assert [order._replace(customer="") for order in utf8.orders] == [
        order._replace(customer="") for order in windows.orders
    ]
    assert [bad.line for bad in utf8.bad] == [bad.line for bad in windows.bad]
    assert (len(utf8.orders), len(utf8.bad)) == (2440, 70)


def test_shipped_files_are_what_their_script_writes(tmp_path: Path) -> None:
    script = runpy.run_path(str(ORDER_FILES[0].with_name("make_orders.py")))

    script["write"](tmp_path)

    for file in ORDER_FILES:
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


# The jobs, called directly


def test_import_orders_twice_notes_bad_rows_once(transactional_db, queues, shop_folder: Path) -> None:
    upload = upload_of(shop_folder, file_of(GOOD, "bad", GOOD))

    first, second = (tasks.import_orders(upload.pk) for _ in range(2))

    assert first == second
    assert first["bad_rows"] == [[3, "1 fields, expected 7"], [4, "order A-1 stands on line 2 already"]]
    assert list(BadRow.objects.values_list("line", "text")) == [(3, "bad"), (4, GOOD)]


def test_save_orders_twice_returns_the_same_and_saves_once(db, shop_folder: Path) -> None:
    upload, later = upload_of(shop_folder, b""), upload_of(shop_folder, b"")
    rows = [list(order) for order in read_orders(file_of(GOOD, GOOD.replace("A-1", "A-2"))).orders]

    results = [
        tasks.save_orders(upload.pk, rows),
        tasks.save_orders(upload.pk, rows),
        tasks.save_orders(later.pk, rows),
    ]

    assert results == [{"saved": 2, "known": 0}, {"saved": 2, "known": 0}, {"saved": 0, "known": 2}]
    assert Order.objects.count() == 2


def test_send_receipt_twice_mails_once(order: Order, shop_folder: Path) -> None:
    paths = [tasks.send_receipt(order.pk) for _ in range(2)]

    assert paths == ["receipts/W-1.html"] * 2
    (message,) = mail.outbox
    assert message.to == ["j@example.org"]
    assert message.extra_headers["Message-ID"] == "<receipt-W-1@example.org>"
    receipt = (shop_folder / "media" / paths[0]).read_text(encoding="utf-8")
    assert "Jürgen &lt;b&gt;Groß&lt;/b&gt;" in receipt
    assert "37.50" in receipt


def test_ask_for_review_leaves_a_cancelled_order_alone(order: Order) -> None:
    Order.objects.update(cancelled_at=datetime.now(timezone.utc))

    assert tasks.ask_for_review(order.pk) is False
    assert mail.outbox == []


@pytest.mark.parametrize(("name", "content"), SAMPLES, ids=[name for name, _ in SAMPLES])
def test_thumbnail_of_each_sample(name: str, content, tmp_path: Path) -> None:
    source, target = tmp_path / name, tmp_path / "thumbnails" / "x.png"
    source.write_bytes(content())

    if source.stem in BROKEN_SAMPLES:
        with pytest.raises(BrokenPicture, match=name):
            make_thumbnail_file(source, target)
        assert not target.exists()
    else:
        size = make_thumbnail_file(source, target)
        with Image.open(target) as thumbnail:
            assert thumbnail.format == "PNG"
            assert thumbnail.size == size
            assert max(size) <= 160


def test_thumbnail_of_a_picture_on_its_side_stands_upright(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(dict(SAMPLES)["MUG-001.jpg"]())

    assert make_thumbnail_file(tmp_path / "x.jpg", tmp_path / "x.png") == (107, 160)


def test_thumbnail_of_too_many_pixels_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("1", (8000, 8000)).save(file, format="PNG")
    (tmp_path / "x.png").write_bytes(file.getvalue())

    with pytest.raises(BrokenPicture, match="8000 × 8000 pixels"):
        make_thumbnail_file(tmp_path / "x.png", tmp_path / "y.png")


def test_thumbnail_of_a_missing_file_may_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_thumbnail_file(tmp_path / "none.png", tmp_path / "y.png")


# The partner


@pytest.fixture
def order_meeting(transactional_db, live_server, settings):
    """Return an order whose calls get the answers of one row of the partner's table."""
    settings.SITE_URL = live_server.url

    def make(row: int) -> Order:
        number = row + len(flaky.ANSWERS)
        fields = {"placed_on": "2024-01-02", "customer": "x", "email": "x@example.org", "sku": "MUG-001"}
        return Order.objects.create(pk=number, number=f"W-{number}", quantity=1, unit_price=1, **fields)

    return make


def test_partner_accepts(order_meeting) -> None:
    order = order_meeting(0)

    result = tasks.tell_partner(order.pk)

    assert result == {"answer": "Order W-5 accepted.", "attempt": 1}
    order.refresh_from_db()
    assert order.partner_told_at is not None


def test_partner_error_is_raised_for_a_retry(order_meeting) -> None:
    order = order_meeting(1)

    with pytest.raises(OSError, match="500"):
        tasks.tell_partner(order.pk)

    assert tasks.tell_partner(order.pk)["answer"] == "Order W-6 accepted."


def test_partner_too_slow_is_raised_for_a_retry(order_meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partner, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(flaky, "SLOW_S", 0.8)
    order = order_meeting(2)

    with pytest.raises(OSError, match="timed out"):
        tasks.tell_partner(order.pk)


def test_partner_busy_asks_for_a_retry_when_it_says(order_meeting) -> None:
    order = order_meeting(3)

    with pytest.raises(Retry) as caught:
        tasks.tell_partner(order.pk)

    assert caught.value.delay_s == 1.0


def test_partner_refuses_an_order_it_does_not_know(order_meeting) -> None:
    order = order_meeting(0)
    order.pk = 99999

    with pytest.raises(partner.PartnerRefused, match="404"):
        partner.post_order(order)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("3", 3, 3),
        ("0.5", 0.5, 0.5),
        ("-7", 0, 0),
        ("86400", 60, 60),
        ("nan", 1, 1),
        ("soon", 1, 1),
    ],
)
def test_retry_after_is_a_number_between_0_and_60_seconds(header: str, least: float, most: float) -> None:
    assert least <= partner.seconds_until(header) <= most


@pytest.mark.parametrize(("away_s", "least", "most"), [(40, 10, 41), (-86400, 0, 0), (86400, 60, 60)])
def test_retry_after_is_a_date_between_0_and_60_seconds_away(away_s: int, least: float, most: float) -> None:
    header = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=away_s), usegmt=True)

    assert least <= partner.seconds_until(header) <= most


# The pages


@pytest.fixture
def shop(transactional_db, queues) -> Client:
    """Return a visitor's browser in a shop with articles."""
    create_products()
    return Client(SERVER_NAME="localhost")


def checkout(shop: Client) -> Order:
    """Order something through the form and return the order."""
    product = Product.objects.get(sku="MUG-001")
    wanted = {"customer": "<i>Zoë</i>", "email": "z@example.org", "product": product.pk, "quantity": 2}
    response = shop.post("/orders/", wanted)
    order = Order.objects.get(number__startswith="W-")
    assert response.headers["Location"] == f"/orders/{order.pk}/"
    return order


def test_checkout_asks_for_three_jobs(shop: Client) -> None:
    order = checkout(shop)

    states = {tracked.task: get_job(tracked.job_id).state.value for tracked in order.jobs.all()}
    assert states == {
        "shop.tasks.send_receipt": "ready",
        "shop.tasks.tell_partner": "ready",
        "shop.tasks.ask_for_review": "scheduled",
    }


def test_refused_checkout_asks_for_nothing(shop: Client) -> None:
    response = shop.post("/orders/", {"customer": "", "email": "no", "product": "0", "quantity": "0"})

    assert response.status_code == 400
    assert (Order.objects.count(), TrackedJob.objects.count()) == (0, 0)


def test_resend_receipt_is_the_same_job(shop: Client) -> None:
    order = checkout(shop)

    page = shop.post(f"/orders/{order.pk}/receipt/", follow=True).content.decode()

    assert "Receipt: the same job" in page
    assert order.jobs.filter(task=tasks.send_receipt.name).count() == 1


def test_cancel_order_cancels_its_review_request(shop: Client) -> None:
    order = checkout(shop)

    for _ in range(2):
        shop.post(f"/orders/{order.pk}/cancel/")

    assert get_job(order.jobs.get(task=tasks.ask_for_review.name).job_id).state.value == "cancelled"
    order.refresh_from_db()
    assert order.cancelled_at is not None


def test_order_page_escapes_and_names_its_jobs(shop: Client) -> None:
    order = checkout(shop)

    page = shop.get(f"/orders/{order.pk}/").content.decode()

    assert "&lt;i&gt;Zoë&lt;/i&gt;" in page
    assert "<i>" not in page
    for tracked in order.jobs.all():
        assert f'data-job="{tracked.job_id}"' in page


def test_upload_is_imported_through_its_job(shop: Client) -> None:
    response = shop.post("/uploads/", {"file": SimpleUploadedFile("täglich.csv", file_of(GOOD, "bad"))})

    upload = Upload.objects.get()
    assert response.headers["Location"] == f"/uploads/{upload.pk}/"
    (tracked,) = upload.jobs.all()
    assert get_job(tracked.job_id).state.value == "ready"
    tasks.import_orders(upload.pk)
    page = shop.get(f"/uploads/{upload.pk}/").content.decode()
    assert "täglich.csv" in page
    assert "<td>3</td><td>1 fields, expected 7</td><td>bad</td>" in page


def test_upload_too_large_is_refused(shop: Client, settings) -> None:
    settings.MAX_UPLOAD_BYTES = 10

    response = shop.post("/uploads/", {"file": SimpleUploadedFile("x.csv", b"x" * 11)})

    assert response.status_code == 400
    assert "The file has 11 bytes; the shop takes up to 10." in response.content.decode()
    assert Upload.objects.count() == 0


def test_new_picture_asks_for_a_thumbnail(shop: Client) -> None:
    product = Product.objects.get(sku="PEN-005")

    shop.post(f"/products/{product.pk}/picture/", {"picture": SimpleUploadedFile("../../etc/x.png", b"no picture")})

    product.refresh_from_db()
    assert picture_path(product).read_bytes() == b"no picture"
    assert get_job(product.jobs.get().job_id).state.value == "ready"


def test_job_states_tells_of_known_jobs_only(shop: Client) -> None:
    order = checkout(shop)
    job_id = order.jobs.get(task=tasks.send_receipt.name).job_id
    unknown = "01890000-0000-7000-8000-000000000000"

    found = shop.get("/jobs/states/", {"id": [job_id, unknown, "no id"]}).json()

    assert found == {job_id: {"state": "ready", "ended": False, "attempts": 0, "note": ""}}


def test_current_states_of_a_job_that_never_arrived(shop: Client) -> None:
    job_id = "01890000-0000-7000-8000-000000000000"

    assert current_states([job_id])[job_id]["state"] == NOT_ARRIVED


def test_change_job_cancels_and_retries_and_reports_what_cannot_be(shop: Client) -> None:
    order = checkout(shop)
    job_id = order.jobs.get(task=tasks.send_receipt.name).job_id

    states = []
    for action in ("cancel", "retry"):
        shop.post(f"/jobs/{job_id}/{action}/")
        states.append(get_job(job_id).state.value)
    page = shop.post(f"/jobs/{job_id}/retry/", follow=True).content.decode()

    assert states == ["cancelled", "ready"]
    assert "cannot be retried" in page
    assert shop.post(f"/jobs/{job_id}/explode/").status_code == 404


def test_pages_say_so_while_redis_is_away(shop: Client, jobrail, tmp_path: Path) -> None:
    order = checkout(shop)
    job_id = order.jobs.get(task=tasks.send_receipt.name).job_id
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "REDIS": f"unix://{tmp_path}/none.sock"}

    page = shop.post(f"/orders/{order.pk}/receipt/")
    states = shop.get("/jobs/states/", {"id": job_id})

    assert (page.status_code, states.status_code) == (503, 503)
    assert "job queue does not answer" in page.content.decode()
    assert states.json() == {"error": "The job queue does not answer."}
    assert shop.get(f"/orders/{order.pk}/").status_code == 200


def test_track_writes_a_job_down_once(shop: Client, order: Order) -> None:
    job = tasks.send_receipt.enqueue(order.pk)

    assert track(job, order=order) == track(job, order=order)


# The demo's report


def ended(task: str, state: str, **subject: object) -> None:
    """Write down a job of the shop that has ended in the state."""
    job_id, now = uuid.uuid4(), datetime.now(timezone.utc)
    Job.objects.create(id=job_id, task=task, queue="default", state=state, enqueued_at=now, mirrored_at=now)
    TrackedJob.objects.create(job_id=str(job_id), task=task, **subject)


@pytest.mark.parametrize(
    ("sku", "state", "is_fine"),
    [
        ("MUG-001", "succeeded", True),
        ("MUG-001", "dead", False),
        ("BOX-008", "dead", True),
        ("BOX-008", "succeeded", False),
    ],
)
def test_report_expects_broken_pictures_to_end_dead(shop: Client, sku: str, state: str, is_fine: bool) -> None:
    Product.objects.update(thumbnail="thumbnails/x.png")
    ended(tasks.make_thumbnail.name, state, product=Product.objects.get(sku=sku))

    surprises = Report().surprises()

    assert [f"is {state}, expected" in line for line in surprises] == ([] if is_fine else [True])


@pytest.mark.parametrize(("cancelled", "is_fine"), [(True, True), (False, False)])
def test_report_expects_only_cancelled_orders_to_lose_their_review(
    order: Order, cancelled: bool, is_fine: bool
) -> None:
    moment = datetime.now(timezone.utc)
    Order.objects.update(receipt_sent_at=moment, partner_told_at=moment, cancelled_at=moment if cancelled else None)
    ended(tasks.ask_for_review.name, "cancelled", order=order)

    assert (Report().surprises() == []) is is_fine


def test_report_counts_what_has_not_ended_and_what_is_missing(shop: Client) -> None:
    checkout(shop)

    report = Report()

    assert report.open == 3
    assert [line.split()[0] for line in report.table().splitlines()] == [
        "task",
        "shop.tasks.ask_for_review",
        "shop.tasks.send_receipt",
        "shop.tasks.tell_partner",
    ]
    assert report.surprises()[-3:] == [
        "3 jobs without a row that says how they ended",
        "1 orders without a mailed receipt",
        "1 orders the partner was not told about",
    ]
