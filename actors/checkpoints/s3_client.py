"""Objects in a bucket, read and replaced one at a time, and what the errors of S3 mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from ...protocol.errors import ConfigurationError, StoreUnavailable, UmbelError

_CREDENTIALS = (
    "refuses the credentials ({error}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of boto3's"
)
_MEANINGS: dict[str, tuple[type[UmbelError], str]] = {
    "NoSuchBucket": (ConfigurationError, "has no such bucket ({error}); create it, or check the URL"),
    "AccessDenied": (ConfigurationError, "does not allow that ({error}); grant get, put, delete and list on the bucket"),
    "InvalidAccessKeyId": (ConfigurationError, _CREDENTIALS),
    "SignatureDoesNotMatch": (ConfigurationError, _CREDENTIALS),
    "ExpiredToken": (ConfigurationError, _CREDENTIALS),
    "403": (ConfigurationError, _CREDENTIALS),
    "NotImplemented": (ConfigurationError, "knows no conditional writes ({error}); without them two writers could both win"),
    "SlowDown": (StoreUnavailable, "wants fewer requests ({error}); try again"),
}
_LOST = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_ABSENT = {"NoSuchKey", "404"}


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object, or its absence.

    Attributes:
        body: None when there is none.
        etag: names this content; None when there is none.
        now: the server's time in seconds since the epoch, as far as it is known: at most a second less.
    """

    body: bytes | None
    etag: str | None
    now: float


class S3Client:
    """A bucket's objects under a prefix. May be used by several threads; its calls block.

    Args:
        bucket: its name.
        prefix: of every key; ends with a slash unless it is empty.
        endpoint: URL of a server that is not Amazon's.
        region: where the bucket is.
        timeout: seconds to wait for a connection, and for an answer.
    """

    def __init__(self, bucket: str, prefix: str, *, endpoint: str | None, region: str | None, timeout: float) -> None:
        self.place = f"{endpoint or 'S3'}, bucket {bucket}"
        self._bucket, self._prefix = bucket, prefix
        self._endpoint, self._region, self._timeout = endpoint, region, timeout
        self._lock = threading.Lock()
        self._client: Any = None
        self._ahead = float("-inf")

    def get(self, key: str, *, first: int | None = None) -> S3Object:
        """An object, or at most its ``first`` bytes."""
        bounds = {} if first is None else {"Range": f"bytes=0-{first - 1}"}
        try:
            answer = self._call("get_object", Key=self._prefix + key, **bounds)
            return S3Object(self._read(answer["Body"]), answer["ETag"], self._now(answer))
        except ClientError as error:
            if _code(error) in _ABSENT:
                return S3Object(None, None, self._now(error.response))
            raise explain(error, self.place) from error

    def put(self, key: str, body: bytes) -> None:
        """Store an object, whatever was there."""
        try:
            self._call("put_object", Key=self._prefix + key, Body=body)
        except ClientError as error:
            raise explain(error, self.place) from error

    def replace(self, key: str, body: bytes, etag: str | None) -> bool:
        """Store an object only if the one that is there still is ``etag``, or, with None, if there is none."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            self._call("put_object", Key=self._prefix + key, Body=body, **condition)
            return True
        except ClientError as error:
            if _code(error) in _LOST or (etag is not None and _code(error) in _ABSENT):
                return False
            raise explain(error, self.place) from error

    def delete(self, key: str) -> None:
        """Delete an object that may be gone already."""
        try:
            self._call("delete_object", Key=self._prefix + key)
        except ClientError as error:
            raise explain(error, self.place) from error

    def keys(self, under: str, after: str = "") -> Iterator[tuple[str, int, float]]:
        """Keys under a folder in their order, behind ``after``, each with its size and the time when it was written."""
        start = {"StartAfter": self._prefix + after} if after else {}
        more: dict[str, str] = start
        while True:
            try:
                page = self._call("list_objects_v2", Prefix=self._prefix + under, **more)
            except ClientError as error:
                raise explain(error, self.place) from error
            for item in page.get("Contents", ()):
                yield item["Key"][len(self._prefix) :], item["Size"], item["LastModified"].timestamp()
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def close(self) -> None:
        """Give up every connection."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _call(self, method: str, **values: Any) -> Any:
        try:
            return getattr(self._connected(), method)(Bucket=self._bucket, **values)
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigurationError(f"{self.place} {_CREDENTIALS.format(error=error)}") from error
        except BotoCoreError as error:
            raise explain(error, self.place) from error

    def _now(self, answer: dict[str, Any]) -> float:
        """The server's time. It tells whole seconds; each answer that is the first of its second makes ours more exact."""
        here = time.monotonic()
        ahead = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp() - here
        with self._lock:
            # More than a second too much, and more than an answer takes: the server's clock was set back.
            self._ahead = ahead if self._ahead > ahead + 1.0 + self._timeout else max(self._ahead, ahead)
            return here + self._ahead

    def _read(self, body: Any) -> bytes:
        try:
            with body:
                data: bytes = body.read()
                return data
        except (BotoCoreError, OSError) as error:
            raise explain(error, self.place) from error

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._create()
                self._probe()
            return self._client

    def _create(self) -> Any:
        config = Config(
            connect_timeout=self._timeout,
            read_timeout=self._timeout,
            retries={"mode": "standard", "max_attempts": 3},  # a write that is sent again finds its own work
            max_pool_connections=32,
            request_checksum_calculation="when_required",  # other servers than Amazon's need not know the newer ones
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"} if self._endpoint else {},
        )
        try:
            session = boto3.session.Session()
            return session.client("s3", endpoint_url=self._endpoint, region_name=self._region, config=config)
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(f"the URL of {self.place} makes no sense: {error}") from None

    def _probe(self) -> None:
        """Be sure that the server honours conditions: one that ignores them would let two writers win.

        Raises:
            ConfigurationError: it does not.
        """
        key, client = f"{self._prefix}probe", self._client
        refused = 0
        for condition in ({"IfNoneMatch": "*"}, {"IfNoneMatch": "*"}, {"IfMatch": '"00000000000000000000000000000000"'}):
            try:
                client.put_object(Bucket=self._bucket, Key=key, Body=b"", **condition)
                refused = 0
            except ClientError as error:
                if _code(error) not in _LOST:
                    self._client = None
                    raise explain(error, self.place) from error
                refused += 1
            except BotoCoreError:
                self._client = None
                raise
        if refused < 2:
            self._client = None
            raise ConfigurationError(
                f"{self.place} ignores conditions of writes (If-None-Match, If-Match), so two writers could win"
            )


def explain(error: Exception, place: str) -> UmbelError:
    """``error`` as an Umbel error that names the bucket and what to do.

    Args:
        error: of the client or of the socket.
        place: endpoint and bucket.
    """
    text = " ".join(str(error).split())
    if isinstance(error, ClientError):
        kind, meaning = _MEANINGS.get(_code(error), (StoreUnavailable, "failed: {error}"))
        return kind(f"{place} {meaning.format(error=text)}", place=place)
    return StoreUnavailable(f"{place} cannot be reached ({text}); check endpoint and network", place=place)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
