"""Write orders.csv and orders-windows-1252.csv, the files the shop imports.

Run it as ``python make_orders.py [FOLDER]``. The same bytes come out every time; both files are committed, so that nobody
has to run it. The Windows file is the same table saved by an old spreadsheet: Windows-1252, CRLF, names the
code page lacks spelled in Latin letters.
"""

from __future__ import annotations

import random
import sys
from datetime import date, timedelta
from pathlib import Path

HEADER = "order_number,placed_on,customer_name,email,sku,quantity,unit_price"
ORDERS = 2500
FIRST_DAY = date(2024, 1, 2)

#: (name in UTF-8, name in Windows-1252, mail box)
CUSTOMERS = (
    ("Anna Schmidt", "Anna Schmidt", "anna.schmidt"),
    ("Jürgen Groß", "Jürgen Groß", "juergen.gross"),
    ("Zoë Lefèvre", "Zoë Lefèvre", "zoe.lefevre"),
    ("François Œuvrard", "François Œuvrard", "f.oeuvrard"),
    ("Søren Ångström", "Søren Ångström", "soren"),
    ("José Núñez", "José Núñez", "jose.nunez"),
    ("Łukasz Żak", "Lukasz Zak", "lukasz.zak"),
    ("Đặng Thị Hương", "Dang Thi Huong", "huong.dang"),
    ("Ελένη Παπαδοπούλου", "Eleni Papadopoulou", "eleni"),
    ("Иван Петров", "Ivan Petrov", "ivan.petrov"),
    ("王小明", "Wang Xiaoming", "xiaoming.wang"),
    ("田中さくら", "Tanaka Sakura", "sakura.tanaka"),
    ("أمينة العلي", "Amina al-Ali", "amina.alali"),
    ("नेहा शर्मा", "Neha Sharma", "neha.sharma"),
    ("Zofia 🦊 Nowak", "Zofia Nowak", "zofia.nowak"),
    ("O’Brien, Siobhán", "O’Brien, Siobhán", "siobhan.obrien"),
    ('Tom "Tex" Miller', 'Tom "Tex" Miller', "tom.miller"),
    ("<b>Bob</b> & Söhne", "<b>Bob</b> & Söhne", "bob"),
)

#: (article, price in cents)
ARTICLES = (
    ("MUG-001", 1250),
    ("TEE-002", 2400),
    ("BAG-003", 3990),
    ("CAP-004", 1895),
    ("PEN-005", 320),
    ("MAP-006", 999),
    ("LMP-007", 8950),
    ("BOX-008", 12900),
)

#: (place of the field, what a careless export writes into it)
FAULTS = (
    (6, "12,5O"),
    (6, "free"),
    (6, ""),
    (6, "-4.00"),
    (5, "-2"),
    (5, "0"),
    (5, "two"),
    (3, "not-an-address"),
    (3, ""),
    (2, "   "),
    (1, "31.02.2024"),
    (1, "2024-02-30"),
    (4, "mug 1"),
    (0, ""),
)


def quoted(field: str) -> str:
    """Return the field as CSV, quoted only where it must be."""
    if any(sign in field for sign in ',"\r\n'):
        return '"' + field.replace('"', '""') + '"'
    return field


def good_fields(number: int, rng: random.Random) -> tuple[list[str], str]:
    """Return the fields of one sound row and its customer's name in Windows-1252."""
    name, plain_name, box = CUSTOMERS[rng.randrange(len(CUSTOMERS))]
    sku, cents = ARTICLES[rng.randrange(len(ARTICLES))]
    placed_on = FIRST_DAY + timedelta(days=number * 700 // ORDERS)
    fields = [
        f"A-{100000 + number}",
        placed_on.isoformat(),
        name,
        f"{box}@example.org",
        sku,
        str(rng.randint(1, 6)),
        f"{cents // 100}.{cents % 100:02d}",
    ]
    return fields, plain_name


def bad_line(fields: list[str], fault: int) -> str:
    """Return the row with one of the faults people send."""
    if fault < len(FAULTS):
        place, text = FAULTS[fault]
        fields = [*fields[:place], text, *fields[place + 1 :]]
    elif fault == len(FAULTS):
        fields = fields[:4]
    elif fault == len(FAULTS) + 1:
        fields = [*fields, "gift wrap"]
    else:
        return ",".join(fields[:2]) + ',"' + ",".join(fields[3:])
    return ",".join(quoted(field) for field in fields)


def lines(*, windows: bool) -> list[str]:
    """Return the whole table, line by line, its header first."""
    rng = random.Random(20240102)
    table = [HEADER]
    fault_kinds = len(FAULTS) + 3
    for number in range(ORDERS):
        fields, plain_name = good_fields(number, rng)
        if windows:
            fields[2] = plain_name
        if number % 41 == 40:
            table.append(bad_line(fields, number // 41 % fault_kinds))
        else:
            table.append(",".join(quoted(field) for field in fields))
        if number % 250 == 249:
            earlier = fields[:]
            earlier[0] = f"A-{100000 + number - 7}"
            table.append(",".join(quoted(field) for field in earlier))
        if number % 600 == 300:
            table.append("")
    return table


def write(folder: Path) -> None:
    """Write both files into the folder."""
    utf8 = "\n".join(lines(windows=False)) + "\n"
    (folder / "orders.csv").write_bytes(utf8.encode("utf-8"))
    windows = "\r\n".join(lines(windows=True)) + "\r\n"
    (folder / "orders-windows-1252.csv").write_bytes(windows.encode("cp1252"))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
