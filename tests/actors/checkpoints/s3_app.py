"""moto as a server of many threads whose writes of one key come one after the other: ``s3_app.py PORT``.

S3 decides conditional writes atomically; moto looks first and writes then, and its threads have no lock around the two.
Requests for different keys, and reads, go on side by side; ``/most-at-once`` tells how many there have been at one moment
since it was last asked.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class AtomicWrites:
    """A WSGI application around moto's."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()
        self._now = self._most = 0

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/most-at-once":
            start("200 OK", [("Content-Type", "text/plain")])
            most, self._most = self._most, 0
            return [str(most).encode()]
        with self._lock:
            self._now += 1
            self._most = max(self._most, self._now)
            lock = self._locks[environ["PATH_INFO"]] if environ["REQUEST_METHOD"] in {"PUT", "DELETE"} else threading.Lock()
        try:
            with lock:
                return self._app(environ, start)  # type: ignore[no-any-return]
        finally:
            with self._lock:
                self._now -= 1


if __name__ == "__main__":
    application = AtomicWrites(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
