"""Read a CSV file of orders: what is sound, what is not, and on which line."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

COLUMNS = ("order_number", "placed_on", "customer_name", "email", "sku", "quantity", "unit_price")
#: Name and Python codec of what is tried, in this order, when no mark says UTF-16.
ENCODINGS = {"UTF-8": "utf-8-sig", "Windows-1252": "cp1252"}
#: A file may name so many bad rows; one with more is the wrong file.
MAX_BAD_ROWS = 1000


class NotAnOrderFile(ValueError):
    """The file as a whole cannot be read as orders; trying again will not help."""


class InvalidRow(ValueError):
    """One row is not an order; the text says why."""


class OrderRow(NamedTuple):
    """One sound row, in JSON's own types so that it can be a job's argument."""

    number: str
    placed_on: str
    customer: str
    email: str
    sku: str
    quantity: int
    unit_price: str


@dataclass(frozen=True)
class BadLine:
    """A line that is not an order."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class OrderFile:
    """A whole file, read: its orders in the order of the file, and its bad lines."""

    encoding: str
    orders: list[OrderRow]
    bad: list[BadLine]


def decode(content: bytes) -> tuple[str, str]:
    """Return the file's text and the name of its encoding.

    UTF-8 with or without a mark, UTF-16 with one, else Windows-1252, whose accented letters are hardly ever valid UTF-8.

    Raises:
        NotAnOrderFile: the bytes are no text in any of them.
    """
    encodings = {"UTF-16": "utf-16"} if content.startswith((b"\xff\xfe", b"\xfe\xff")) else ENCODINGS
    for name, codec in encodings.items():
        try:
            return content.decode(codec), name
        except UnicodeDecodeError:
            continue
    raise NotAnOrderFile(f"The file is not text in {' or '.join(encodings)}. Save it as CSV in UTF-8.")


def read_orders(content: bytes) -> OrderFile:
    """Read a whole file.

    An order number counts once: a later line that repeats it is a bad one, whatever jobs do with the orders afterwards.
    Every line stands for itself, so a stray quotation mark costs one line and not the rest of the file.

    Raises:
        NotAnOrderFile: no text, no header, or more than 1,000 bad lines.
    """
    text, encoding = decode(content)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    check_header(lines[0])
    first_lines: dict[str, int] = {}
    orders: list[OrderRow] = []
    bad: list[BadLine] = []
    for line, row_text in enumerate(lines[1:], start=2):
        if not row_text.strip():
            continue
        try:
            order = parse_row(row_text)
            first = first_lines.setdefault(order.number, line)
            if first != line:
                raise InvalidRow(f"order {order.number} stands on line {first} already")
        except InvalidRow as exc:
            bad.append(BadLine(line, str(exc)[:300], row_text[:200].replace("\x00", "\N{SYMBOL FOR NULL}")))
        else:
            orders.append(order)
        if len(bad) > MAX_BAD_ROWS:
            raise NotAnOrderFile(
                f"More than {MAX_BAD_ROWS} lines are not orders; the last is line {line}: {bad[-1].reason}"
            )
    return OrderFile(encoding, orders, bad)


def check_header(line: str) -> None:
    """Refuse a file whose first line does not name the seven columns."""
    found = tuple(name.strip().lower() for name in line.split(","))
    if found != COLUMNS:
        raise NotAnOrderFile(f"The first line is {line[:100]!r}; it must be {','.join(COLUMNS)!r}.")


def parse_row(text: str) -> OrderRow:
    """Return the order on one line, or raise InvalidRow with the first thing that is wrong with it."""
    try:
        fields = next(csv.reader([text], strict=True))
    except csv.Error as exc:
        raise InvalidRow(f"not CSV: {exc}") from exc
    if len(fields) != len(COLUMNS):
        raise InvalidRow(f"{len(fields)} fields, expected {len(COLUMNS)}")
    number, placed_on, customer, email, sku, quantity, unit_price = (field.strip() for field in fields)
    return OrderRow(
        number=matching(number, r"[A-Z]-[0-9]{1,12}", "order number", "A-100001"),
        placed_on=a_date(placed_on),
        customer=a_name(customer),
        email=an_address(email),
        sku=matching(sku, r"[A-Z]{3}-[0-9]{3}", "article", "MUG-001"),
        quantity=int(matching(quantity, r"[1-9][0-9]{0,3}", "quantity", "2")),
        unit_price=str(Decimal(matching(unit_price, r"[0-9]{1,6}(\.[0-9]{1,2})?", "price", "12.50"))),
    )


def matching(text: str, pattern: str, what: str, example: str) -> str:
    """Return the text if the whole of it has the pattern."""
    if not re.fullmatch(pattern, text):
        raise InvalidRow(f"{what} {text[:40]!r} is not like {example!r}")
    return text


def a_date(text: str) -> str:
    """Return the text if it is a day of the calendar, written YYYY-MM-DD."""
    matching(text, r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "date", "2024-01-31")
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as exc:
        raise InvalidRow(f"date {text!r} does not exist") from exc


def a_name(text: str) -> str:
    """Return the text if it can be a customer's name."""
    if not 1 <= len(text) <= 120 or "\x00" in text:
        raise InvalidRow(f"customer name {text[:40]!r} must have 1 to 120 characters")
    return text


def an_address(text: str) -> str:
    """Return the text if it can be a mail address."""
    try:
        validate_email(text)
    except ValidationError as exc:
        raise InvalidRow(f"email {text[:40]!r} is not an address") from exc
    return text
