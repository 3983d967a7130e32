"""A visitor's browser: pages, cookies, forms with their CSRF token."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

from demo_parts.processes import DemoFailed

#: Seconds a page may take.
PAGE_TIMEOUT_S = 30.0


class Browser:
    """Send requests to one site as one visitor."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.requests = 0
        self.path = ""
        self._cookies = CookieJar()
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(self._cookies))

    def get(self, path: str) -> str:
        """Return the page; `path` then says where redirects have led."""
        return self._send(Request(self.site + path))

    def get_json(self, path: str) -> Any:
        """Return the JSON answer."""
        return json.loads(self.get(path))

    def post(
        self, path: str, fields: Mapping[str, str] | None = None, files: Mapping[str, tuple[str, bytes]] | None = None
    ) -> str:
        """Send a form and return the page it leads to; a page with a form must have been read before.

        Args:
            path: Address of the form.
            fields: Text fields by name.
            files: (file name, content) by name of the field; with any, the form is sent as multipart.
        """
        token = next(str(cookie.value) for cookie in self._cookies if cookie.name == "csrftoken")
        sent = {"csrfmiddlewaretoken": token, **(fields or {})}
        if files:
            body, kind = multipart(sent, files)
        else:
            body, kind = urlencode(sent).encode(), "application/x-www-form-urlencoded"
        return self._send(Request(self.site + path, data=body, headers={"Content-Type": kind}))

    def _send(self, request: Request) -> str:
        self.requests += 1
        try:
            with self._opener.open(request, timeout=PAGE_TIMEOUT_S) as answer:
                self.path = urlsplit(answer.url).path
                return str(answer.read().decode("utf-8"))
        except HTTPError as exc:
            exc.close()
            raise DemoFailed(f"{request.get_method()} {request.full_url} answered {exc.code}.") from exc


def multipart(fields: Mapping[str, str], files: Mapping[str, tuple[str, bytes]]) -> tuple[bytes, str]:
    """Return a form's body as multipart/form-data, and its content type."""
    boundary = uuid.uuid4().hex
    parts: list[bytes] = []
    for name, text in fields.items():
        parts += [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode(),
            text.encode(),
            b"\r\n",
        ]
    for name, (file_name, content) in files.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{file_name}"\r\n'
        parts += [head.encode(), b"Content-Type: application/octet-stream\r\n\r\n", content, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"
