"""Thumbnails, and sample pictures to make them from."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

from django.conf import settings
from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError

from shop.files import write_whole
from shop.models import Product

#: Pixels: the longest side of a thumbnail.
THUMBNAIL_SIDE = 160
#: A picture of more pixels is refused before it is unpacked: it takes four bytes of memory for each.
MAX_PIXELS = 40_000_000


class BrokenPicture(ValueError):
    """The file is no picture that can be read; trying again will not help."""


def picture_path(product: Product) -> Path:
    """Return where the product's picture lies as it was sent."""
    return Path(settings.UPLOAD_DIR) / "pictures" / product.picture


def make_thumbnail_file(source: Path, target: Path) -> tuple[int, int]:
    """Write a PNG of at most 160 × 160 pixels and return its width and height.

    Raises:
        BrokenPicture: the source is cut off, no picture, or larger than 40 million pixels.
        OSError: the source cannot be read or the target not be written.
    """
    thumbnail = shrink(source.read_bytes(), source.name)
    png = io.BytesIO()
    thumbnail.save(png, format="PNG")
    write_whole(target, [png.getvalue()])
    return thumbnail.size


def shrink(content: bytes, name: str) -> Image.Image:
    """Return the picture turned upright, in RGB or RGBA, at thumbnail size."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise BrokenPicture(
                    f"{name!r} has {width} × {height} pixels, more than {MAX_PIXELS}; send a smaller one."
                )
            upright = ImageOps.exif_transpose(image)
            has_alpha = upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info
            result = upright.convert("RGBA" if has_alpha else "RGB")
    except BrokenPicture:
        raise
    except UnidentifiedImageError as exc:
        raise BrokenPicture(f"{name!r} is not a picture. Send a PNG, JPEG, GIF or WebP file.") from exc
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as exc:
        raise BrokenPicture(f"{name!r} is a broken picture: {exc}. Send it once more, whole.") from exc
    result.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    return result


def drawing(width: int, height: int, hue: int) -> Image.Image:
    """Draw a sample picture: a gradient of one hue with a white ring."""
    shade = Image.linear_gradient("L").resize((width, height))
    image = Image.merge("HSV", (Image.new("L", shade.size, hue), Image.new("L", shade.size, 160), shade)).convert("RGB")
    edge = min(width, height) // 5
    ImageDraw.Draw(image).ellipse((edge, edge, width - edge, height - edge), outline="white", width=max(2, edge // 4))
    return image


def encoded(image: Image.Image, **options: object) -> bytes:
    """Return the image as a file of the format that the options name."""
    file = io.BytesIO()
    image.save(file, **options)  # type: ignore[arg-type]
    return file.getvalue()


def sideways_jpeg() -> bytes:
    """Return a JPEG whose EXIF data says that it lies on its side, as phones send them."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(drawing(1200, 800, 20), format="JPEG", exif=exif)


def cut_off_jpeg() -> bytes:
    """Return the first third of a JPEG, as a broken upload leaves it."""
    whole = encoded(drawing(900, 900, 120), format="JPEG")
    return whole[: len(whole) // 3]


#: File name and content of each sample picture; the last two are broken and no job can do anything about it.
SAMPLES: tuple[tuple[str, Callable[[], bytes]], ...] = (
    ("MUG-001.jpg", sideways_jpeg),
    ("TEE-002.png", lambda: encoded(drawing(800, 1000, 60).convert("RGBA"), format="PNG")),
    ("BAG-003.gif", lambda: encoded(drawing(400, 400, 90).convert("P"), format="GIF")),
    ("CAP-004.jpg", lambda: encoded(drawing(1000, 1000, 150).convert("CMYK"), format="JPEG")),
    ("PEN-005.png", lambda: encoded(drawing(60, 20, 180).convert("L"), format="PNG")),
    ("MAP-006.jpg", lambda: encoded(drawing(4000, 3000, 200), format="JPEG")),
    ("LMP-007.jpg", cut_off_jpeg),
    ("BOX-008.png", lambda: "This is a letter, not a picture.".encode()),
)
#: Articles whose sample picture is broken.
BROKEN_SAMPLES = ("LMP-007", "BOX-008")
