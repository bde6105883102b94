"""A local Ray ends with the process that started it, whatever way that ends, and not before.

The kernel ends most of Ray's processes together with the *thread* that started them, so that must be a lasting one. Others
look for their parent once in a while, and two agents of Ray stay for a minute when everything dies at once: a small
process watches over them, and kills what is still there after a grace. It knows them by their titles and by the files
of the Ray session that they write.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

GRACE = 2.0
PATIENCE = 10.0
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[2]); from umbel.cluster.local_ray import watch; watch(sys.argv[1])"


class Watcher:
    """A process that waits for this one to end, or for :meth:`finish`, and then for every process of a Ray session.

    Args:
        session: the session's folder.
    """

    def __init__(self, session: str) -> None:
        command = [sys.executable, "-c", _BOOT, session, json.dumps(sys.path)]
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
    from ray._private.worker import global_worker

    lastingly(lambda: ray.init(address=address, **settings))
    node: Any = global_worker.node
    return None if is_joined() else Watcher(node.get_session_dir_path())


def is_joined() -> bool:
    """Whether other machines may be part of this Ray: it was not started by this process for itself."""
    from ray._private.worker import global_worker

    node = global_worker.node
    return node is None or not node.is_head()


def watch(session: str) -> None:
    """The watcher's main function: wait for the end of standard input, then for the end of the session's processes."""
    sys.stdin.buffer.read()
    patience = time.monotonic() + GRACE
    while left := processes_of(session):
        if time.monotonic() > patience:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes_of(session: str) -> list[int]:
    """Ray's own processes of a session. A program that uses it writes a log there too, but is nobody's to kill."""
    processes = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
    return [int(each.name) for each in processes if _is_rays_own(each, session) and _writes_into(each, session)]


def _is_rays_own(process: Path, session: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        command = (process / "cmdline").read_bytes()
        return command.startswith(b"ray::") or session.encode() in command
    return False


def _writes_into(process: Path, folder: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or it is somebody else's
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if descriptor.readlink().is_relative_to(folder):
                    flags = (process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0]
                    if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                        return True
    return False


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
