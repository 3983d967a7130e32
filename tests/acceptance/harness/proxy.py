"""A TCP proxy before Redis that breaks connections in every way a network can."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from jobrail_django.broker.scripts import Script, load

#: Commands that set a connection up, and the one that waits: `cut_after` does not count them.
UNCOUNTED = frozenset({"client", "hello", "auth", "select", "ping", "blpop"})
CHUNK = 1 << 16


def scripts_by_sha() -> dict[str, str]:
    """Return the name of each script by its hash."""
    return {load(script).sha: script.value for script in Script}


class CommandReader:
    """Cuts a client's bytes into commands.

    `feed` takes bytes and returns the commands that are complete: name and raw bytes. A script is named by its
    file, whether it comes as EVALSHA or as EVAL; any other command by its word, in lower case.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._scripts = scripts_by_sha()

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        self._buffer += data
        found = []
        while (end := self._end()) is not None:
            raw, self._buffer = self._buffer[:end], self._buffer[end:]
            found.append((self._name(raw), raw))
        return found

    def _end(self) -> int | None:
        """Return where the first command in the buffer ends, None if it is not complete."""
        line_end = self._buffer.find(b"\r\n")
        if line_end < 0:
            return None
        assert self._buffer[:1] == b"*", "the client does not send arrays"
        at = line_end + 2
        for _ in range(int(self._buffer[1:line_end])):
            line_end = self._buffer.find(b"\r\n", at)
            if line_end < 0:
                return None
            at = line_end + 2 + int(self._buffer[at + 1 : line_end]) + 2
        return at if len(self._buffer) >= at else None

    def _name(self, raw: bytes) -> str:
        words = list(_words(raw, 2))
        word = words[0].decode().lower()
        if word == "evalsha":
            return self._scripts.get(words[1].decode(), "evalsha")
        if word == "eval":
            return self._scripts.get(hashlib.sha1(words[1], usedforsecurity=False).hexdigest(), "eval")
        return word


def _words(raw: bytes, count: int) -> Iterator[bytes]:
    at = raw.index(b"\r\n") + 2
    for _ in range(min(count, int(raw[1 : at - 2]))):
        end = raw.index(b"\r\n", at)
        length = int(raw[at + 1 : end])
        yield raw[end + 2 : end + 2 + length]
        at = end + 2 + length + 2


@dataclass(slots=True)
class _Loss:
    """Which replies are to be lost: of these commands, every `every`-th, so many in all."""

    names: Collection[str]
    every: int
    left: int
    silent: bool
    seen: int = 0


@dataclass(eq=False)
class _Link:
    """One client's connection and its way on to the server."""

    client: socket.socket
    server: socket.socket
    flow: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    lost: _Loss | None = None

    def close(self) -> None:
        self.flow.set()
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()


class Proxy:
    """Forwards to a Redis on this machine, and fails as told. Use it in a `with` block.

    Attributes:
        commands: how many commands of each name have been forwarded.
        lost: how many replies of each name were lost on purpose.
        delay_s: pause before each command is forwarded.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.commands: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.delay_s = 0.0
        self.has_cut = threading.Event()
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._refusing = self._stalling_new = False
        self._losses: list[_Loss] = []
        self._countdown = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        """Return its address as a URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._refusing = True
        self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`, which `close` alone does not
        self._listener.close()
        self.cut()

    # Faults

    def cut(self, *, refuse: bool = False) -> None:
        """Close all connections; with `refuse`, new ones are closed at once too, until `restore`."""
        with self._lock:
            self._refusing = self._refusing or refuse
            links, self._links = self._links, set()
        for link in links:
            link.close()

    def stall(self, *, new_ones: bool = False) -> None:
        """Forward nothing more on the connections there are, and close none; with `new_ones`, on new ones neither."""
        with self._lock:
            self._stalling_new = new_ones
            for link in self._links:
                link.flow.clear()

    def cut_after(self, count: int) -> None:
        """Let the server have `count` more commands, then cut everything before the last reply, and refuse.

        `has_cut` is set once it has happened. See `UNCOUNTED`.
        """
        with self._lock:
            self.has_cut.clear()
            self._countdown = count

    def lose_replies(self, names: Collection[str], count: int, *, every: int = 1, silent: bool = False) -> None:
        """Let the server have these commands, and lose the reply of every `every`-th, `count` in all.

        The connection is cut instead, or with `silent` stays open and mute.
        """
        with self._lock:
            self._losses.append(_Loss(frozenset(names), every, count, silent))

    def restore(self) -> None:
        """End all faults but connections that were cut."""
        with self._lock:
            self._refusing = self._stalling_new = False
            self._losses.clear()
            self._countdown = 0
            for link in self._links:
                link.flow.set()

    # Forwarding

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                link = _Link(client, socket.create_connection(("127.0.0.1", self.upstream), timeout=5))
            except OSError:
                client.close()
                continue
            link.server.settimeout(None)
            with self._lock:
                if self._refusing:
                    link.close()
                    continue
                if not self._stalling_new:
                    link.flow.set()
                self._links.add(link)
            for target in (self._forward_commands, self._forward_replies):
                threading.Thread(target=target, args=(link,), daemon=True).start()

    def _forward_commands(self, link: _Link) -> None:
        reader = CommandReader()
        try:
            while data := link.client.recv(CHUNK):
                for name, raw in reader.feed(data):
                    link.flow.wait()
                    if self.delay_s:
                        time.sleep(self.delay_s)
                    self._command(link, name, raw)
        except OSError:
            pass
        self._drop(link)

    def _command(self, link: _Link, name: str, raw: bytes) -> None:
        with self._lock:
            self.commands[name] += 1
            link.lost = self._next_loss(name)
            is_last = False
            if self._countdown and name not in UNCOUNTED:
                self._countdown -= 1
                is_last = self._countdown == 0
            if is_last:
                link.lost = _Loss((), 1, 0, True)
        link.answered.clear()
        link.server.sendall(raw)
        if is_last:
            link.answered.wait(5)
            self.cut(refuse=True)
            self.has_cut.set()

    def _next_loss(self, name: str) -> _Loss | None:
        for loss in self._losses:
            if loss.left and name in loss.names:
                loss.seen += 1
                if loss.seen % loss.every == 0:
                    loss.left -= 1
                    self.lost[name] += 1
                    return loss
        return None

    def _forward_replies(self, link: _Link) -> None:
        try:
            while data := link.server.recv(CHUNK):
                link.flow.wait()
                link.answered.set()
                loss = link.lost
                if loss is None or data.startswith(b"-NOSCRIPT"):  # then the script comes once more, as text
                    link.client.sendall(data)
                elif not loss.silent:
                    break
        except OSError:
            pass
        self._drop(link)

    def _drop(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)
        link.close()


class RawProxy(Proxy):
    """Forwards to any server on this machine without reading what is said; cuts and stalls alike."""

    def _forward_commands(self, link: _Link) -> None:
        try:
            while data := link.client.recv(CHUNK):
                link.flow.wait()
                link.server.sendall(data)
        except OSError:
            pass
        self._drop(link)
