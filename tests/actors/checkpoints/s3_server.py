"""A server that speaks like S3 for the tests: a process of its own on a free port of loopback, ended by pid."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import httpx

from .redis_server import free_port

# The environment that boto3 takes its credentials from; this server takes any.
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}


class S3Server:
    """It keeps its buckets in memory; there is one, ``umbel``."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self) -> S3Server:
        command = [sys.executable, str(Path(__file__).with_name("s3_app.py")), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        self.client().create_bucket(Bucket="umbel")
        return self

    def client(self) -> Any:
        names = {"aws_access_key_id": "tests", "aws_secret_access_key": "tests", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.endpoint, **names)

    def most_at_once(self) -> int:
        """Requests that it has worked on at one moment since this was last asked."""
        return int(httpx.get(f"{self.endpoint}/most-at-once").text)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.endpoint}/moto-api/").status_code < 500
        except httpx.TransportError:
            return False
