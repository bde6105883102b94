"""A local Ray ends with the process that started it, whatever way that ends, and not before.

The kernel ends most of Ray's processes together with the *thread* that started them, so that must be a lasting one. Others
look for their parent once in a while, and two agents of Ray stay for a minute when everything dies at once: a small
process watches over them, and kills what is still there after a grace.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..actors.tools.marks import kill_marked, marked

VARIABLE = "UMBEL_LOCAL_RAY"
GRACE = 2.0
PATIENCE = 10.0
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[2]); from umbel.cluster.local_ray import watch; watch(sys.argv[1])"


class Watcher:
    """A process that waits for this one to end, or for :meth:`finish`, and then for everything with ``mark``."""

    def __init__(self, mark: str) -> None:
        command = [sys.executable, "-c", _BOOT, mark, json.dumps(sys.path)]
        nowhere = subprocess.DEVNULL
        # The pipe tells it: nobody else holds its other end.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)

    def finish(self) -> None:
        """Return when nothing is left."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_ray(address: str | None, settings: dict[str, Any]) -> Watcher | None:
    """``ray.init``. Returns who watches over a Ray that was started here, or None when one was joined."""
    import ray

    mark = uuid.uuid4().hex
    os.environ[VARIABLE] = mark  # only for what is started here and now: the user's own processes are their own
    try:
        lastingly(lambda: ray.init(address=address, **settings))
    finally:
        del os.environ[VARIABLE]
    return None if is_joined() else Watcher(mark)


def is_joined() -> bool:
    """Whether other machines may be part of this Ray: it was not started by this process for itself."""
    from ray._private.worker import global_worker

    node = global_worker.node
    return node is None or not node.is_head()


def watch(mark: str) -> None:
    """The watcher's main function: wait for the end of standard input, then for the end of what is marked."""
    sys.stdin.buffer.read()
    patience = time.monotonic() + GRACE
    while marked(f"{VARIABLE}={mark}"):
        if time.monotonic() > patience:
            kill_marked(f"{VARIABLE}={mark}")
        time.sleep(0.05)


_lock = threading.Lock()
_jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] | None = None


def lastingly(job: Callable[[], Any]) -> Any:
    """Call ``job`` in a thread that lives as long as this process: the main thread if this is it, else one for the purpose."""
    global _jobs  # noqa: PLW0603 - one thread a process
    if threading.current_thread() is threading.main_thread():
        return job()
    with _lock:
        if _jobs is None:
            _jobs = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(_jobs,), name="umbel-lasting", daemon=True).start()
    done: Future[Any] = Future()
    _jobs.put((job, done))
    return done.result()


def _serve(jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]) -> None:
    while True:
        job, done = jobs.get()
        try:
            done.set_result(job())
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            done.set_exception(error)
        del job, done
