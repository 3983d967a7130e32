"""What the demo's visitor does in the shop."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator

from shop.pictures import BROKEN_SAMPLES, SAMPLES
from shop.sample import ORDER_FILES

from demo_parts.browser import Browser

NAMES = (
    "Anna Schmidt",
    "Jürgen Groß",
    "王小明",
    "أمينة العلي",
    "O’Brien, Siobhán",
    "<b>Bob</b> & Söhne",
    "Zofia 🦊 Nowak",
)


class Visitor:
    """Use every page of the shop, over HTTP, in an order that is the same in each run."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self._rng = random.Random(20240102)
        self._orders: list[str] = []
        self._products: dict[str, str] = {}

    def visit(self) -> Iterator[str]:
        """Do one thing after the other, for ever; yield after each what it was."""
        for opening in (self.upload_orders, self.import_windows_file, self.make_thumbnails):
            yield opening()
        day: tuple[Callable[[], str], ...] = (
            self.order,
            self.look_at_order,
            self.order,
            self.order,
            self.send_receipt_again,
            self.send_picture,
            self.order,
            self.order,
            self.cancel_last_order,
            self.look_around,
        )
        for action in itertools.cycle(day):
            yield action()

    def upload_orders(self) -> str:
        """Upload the UTF-8 file through the form, as a browser does."""
        self.browser.get("/")
        file = ORDER_FILES[0]
        self.browser.post("/uploads/", files={"file": (file.name, file.read_bytes())})
        return f"uploaded {file.name}"

    def import_windows_file(self) -> str:
        """Import the Windows copy, whose orders are the same."""
        self.browser.post("/uploads/shipped/1/")
        return f"imported {ORDER_FILES[1].name}"

    def make_thumbnails(self) -> str:
        """Ask for all thumbnails and remember the articles' forms."""
        page = self.browser.post("/products/thumbnails/")
        rows = re.findall(r"<td>([A-Z]{3}-\d{3}) .*?(/products/\d+/picture/)", page, re.DOTALL)
        self._products = dict(rows)
        return "asked for all thumbnails"

    def order(self) -> str:
        """Order something."""
        page = self.browser.get("/")
        products = re.findall(r'<option value="(\d+)"', page)
        name = self._rng.choice(NAMES)
        wanted = {"product": self._rng.choice(products), "quantity": str(self._rng.randint(1, 9))}
        self.browser.post("/orders/", {"customer": name, "email": "visitor@example.org", **wanted})
        self._orders.append(self.browser.path)
        return f"ordered as {name}"

    def look_at_order(self) -> str:
        """Look at an order's page and ask once how its jobs stand, as the page's script does."""
        page = self.browser.get(self._rng.choice(self._orders))
        ids = re.findall(r'data-job="([^"]+)"', page)
        self.browser.get_json("/jobs/states/?" + "&".join(f"id={job_id}" for job_id in ids))
        return "looked at an order"

    def send_receipt_again(self) -> str:
        """Ask for a receipt that has been asked for already."""
        self.browser.post(self._rng.choice(self._orders) + "receipt/")
        return "asked for a receipt again"

    def send_picture(self) -> str:
        """Send an article's picture; that of some articles is broken."""
        name, content = self._rng.choice(SAMPLES)
        sku = name.split(".")[0]
        self.browser.post(self._products[sku], files={"picture": (name, content())})
        return f"sent a {'broken ' if sku in BROKEN_SAMPLES else ''}picture of {sku}"

    def cancel_last_order(self) -> str:
        """Cancel the newest order."""
        self.browser.post(self._orders[-1] + "cancel/")
        return "cancelled an order"

    def look_around(self) -> str:
        """Read the lists."""
        for path in ("/orders/", "/products/", "/jobs/", "/uploads/1/"):
            self.browser.get(path)
        return "looked around"
