"""The job server of a Ray cluster, with errors that say what to do, and no wait longer than it must be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from ...protocol.errors import ConfigurationError, DeadlineExceeded, JobServerError

FINAL = ("SUCCEEDED", "FAILED", "STOPPED")
ANSWER_SECONDS = 5.0
READY_SECONDS = 30.0
LEAST_RAY = (2, 60)
_CHATTY = (  # they tell about every upload and every closed connection
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)


class JobServer:
    """Submits, reads and stops jobs.

    Args:
        address: of the dashboard, such as ``http://127.0.0.1:8265``.

    Raises:
        ConfigurationError: nothing answers there within seconds, it is no Ray, its Ray is too old, or it wants another token.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.version = _check_version(self.address)
        from ray.job_submission import JobSubmissionClient

        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)

        with _explained(self.address):
            self._client: Any = JobSubmissionClient(self.address)

    def submit(self, *, clock: Callable[[], float] = time.monotonic, **job: Any) -> bool:
        """Submit a job under its ``submission_id``; False if the server has one of that id already.

        A server that has just started answers before it can run jobs; it is asked again for half a minute.
        """
        patience = clock() + READY_SECONDS
        while True:
            try:
                with _explained(self.address):
                    self._client.submit_job(**job)
                    return True
            except JobServerError as error:
                if "already exists" in str(error):
                    return False
                if "agent" not in str(error).lower() or clock() > patience:
                    raise
                time.sleep(0.5)

    def jobs(self) -> list[Any]:
        """Every job that was submitted (Ray's ``JobDetails``), the newest first; Ray forgets old ones."""
        with _explained(self.address):
            found = [job for job in self._client.list_jobs() if job.submission_id]
        return sorted(found, key=lambda job: -(job.start_time or 0))

    def info(self, job_id: str) -> Any | None:
        """Ray's ``JobDetails``, or None for a job that it does not know (any more)."""
        try:
            with _explained(self.address):
                return self._client.get_job_info(job_id)
        except JobServerError as error:
            if "404" in str(error) or "does not exist" in str(error):
                return None
            raise

    def logs(self, job_id: str) -> str:
        """All that the job has written."""
        with _explained(self.address):
            return str(self._client.get_job_logs(job_id))

    async def tail(self, job_id: str) -> AsyncIterator[str]:
        """What the job writes, from the beginning, until it ends."""
        with _explained(self.address):
            async for lines in self._client.tail_job_logs(job_id):
                yield lines

    def stop(self, job_id: str) -> None:
        """Ask the job to stop."""
        with _explained(self.address):
            self._client.stop_job(job_id)

    async def ended(self, job_id: str, seconds: float) -> Any:
        """The job's details once it has ended.

        Raises:
            DeadlineExceeded: it has not after ``seconds``; names the state it is in.
        """
        end = time.monotonic() + seconds
        while (job := await asyncio.to_thread(self.info, job_id)) is not None and str(job.status.value) not in FINAL:
            if time.monotonic() > end:
                raise DeadlineExceeded(f"job {job_id} is still {job.status.value} after {seconds:.0f} s")
            await asyncio.sleep(0.3)
        return job


def _check_version(address: str) -> str:
    """The Ray version of the server; asked by plain HTTP, because Ray's own client waits for ever."""
    import httpx

    try:
        answer = httpx.get(f"{address}/api/version", timeout=ANSWER_SECONDS, trust_env=False)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"--address {address}: {error}; expected for example http://127.0.0.1:8265") from None
    except httpx.UnsupportedProtocol:
        raise ConfigurationError(
            f"--address {address}: expected the dashboard's address, http://host:8265, not that of Ray itself (6379)"
        ) from None
    except httpx.HTTPError as error:
        raise ConfigurationError(
            f"no job server answers at {address} ({type(error).__name__}); start one with 'ray start --head', "
            "or give the address of its dashboard, http://host:8265"
        ) from None
    if answer.status_code in (401, 403):
        return ""  # the client tries with the token
    try:
        version = str(answer.json()["ray_version"])
        numbers = tuple(int(part) for part in version.split(".")[:2])
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"what answers at {address} is no Ray dashboard (HTTP {answer.status_code})") from None
    if numbers < LEAST_RAY:
        raise ConfigurationError(f"the cluster at {address} runs Ray {version}; Umbel needs 2.60 or newer")
    return version


@contextlib.contextmanager
def _explained(address: str) -> Iterator[None]:
    """Ray's errors as ours."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        raise ConfigurationError(
            f"the cluster at {address} wants another token ({' '.join(str(error).split())[:200]}). Set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH=/path/to/its/token, or copy it to ~/.ray/auth_token"
        ) from None
    except (RuntimeError, ConnectionError, OSError) as error:
        raise JobServerError(f"the job server at {address}: {' '.join(str(error).split())[-600:]}") from error
