"""A page fetcher that stays off private networks, whatever names, redirects and name servers say (TOOL-35, BUG-46)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import httpx

from ....protocol.errors import FetchRefused, ToolError, ToolTimeout
from .addresses import Resolve, reachable, resolve
from .pages import Page, is_readable, read_page

_GZIP_OR_ZLIB = 47
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class HttpFetcher:
    """Fetches pages over http and https.

    Every hop resolves the host, refuses addresses that are not public, and connects to an address that was checked, so that
    a second look-up cannot lead elsewhere. Proxies of the environment are not used: they would look names up themselves.

    Attributes:
        timeout: seconds for everything together, redirects and reading included.
        max_bytes: of a body, decompressed; the rest is not read.
        max_redirects: hops after the first.
        allow_private: also addresses of private networks and of this machine; never link-local and metadata ones.
        user_agent: how it introduces itself.
        resolve: names to addresses; a port for tests, like ``transport``.
    """

    timeout: float = 30.0
    max_bytes: int = 5_000_000
    max_redirects: int = 5
    allow_private: bool = False
    user_agent: str = "umbel-web-fetch"
    resolve: Resolve = resolve
    transport: httpx.AsyncBaseTransport | None = None

    async def fetch(self, url: str) -> Page:
        """The page at ``url``.

        Raises:
            FetchRefused: it leads, at any hop, to an address that is not allowed, or is no http(s) URL.
            ToolTimeout: the time is over.
            ToolError: the server cannot be reached, answers with an error, or with something that is not text.
        """
        try:
            async with asyncio.timeout(self.timeout):
                return await self._follow(url)
        except TimeoutError:
            raise ToolTimeout(f"{url[:200]} was not fetched within {self.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise ToolError(f"{url[:200]} cannot be fetched: {type(error).__name__}: {error}") from error

    async def _follow(self, address: str) -> Page:
        url = checked_url(address)
        for _ in range(self.max_redirects + 1):
            async with self._get(url) as response:
                if not response.has_redirect_location:
                    return await self._read(url, response)
                url = checked_url(_joined(url, response.headers["location"]))
        raise ToolError(f"{address[:200]} redirects more than {self.max_redirects} times")

    @asynccontextmanager
    async def _get(self, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        host = url.raw_host.decode("ascii").strip("[]")
        port = url.port or _DEFAULT_PORTS[url.scheme]
        addresses = await reachable(host, port, allow_private=self.allow_private, resolve=self.resolve)
        headers = {"Host": url.netloc.decode("ascii"), "User-Agent": self.user_agent, "Accept-Encoding": "gzip"}
        async with self._client() as client:
            for number, address in enumerate(addresses, 1):
                request = client.build_request("GET", url.copy_with(host=address), headers=headers, extensions=_named(host))
                try:
                    response = await client.send(request, stream=True)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if number == len(addresses):
                        raise
                    continue
                try:
                    yield response
                finally:
                    await response.aclose()
                return

    def _client(self) -> httpx.AsyncClient:
        # No connection is kept: one to the same address may have been opened, and its certificate checked, for another name.
        limits = httpx.Limits(max_keepalive_connections=0)
        # The whole has a deadline already; half of it at most for one of several addresses.
        timeout = httpx.Timeout(None, connect=self.timeout / 2)
        return httpx.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=timeout, limits=limits, transport=self.transport
        )

    async def _read(self, url: httpx.URL, response: httpx.Response) -> Page:
        if response.status_code >= 400:
            raise ToolError(f"{url} answered {response.status_code} {response.reason_phrase}".rstrip())
        content_type = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
        if not is_readable(content_type):
            raise ToolError(f"{url} is {content_type[:80]}, which cannot be read as text")
        body, truncated = await self._body(response)
        return await asyncio.to_thread(read_page, str(url), body, content_type, response.charset_encoding, truncated)

    async def _body(self, response: httpx.Response) -> tuple[bytes, bool]:
        """The body, unpacked here, because a small packed one may be a huge one."""
        packing = response.headers.get("content-encoding", "identity").strip().lower()
        if packing not in ("identity", "gzip", "deflate", ""):
            raise ToolError(f"the answer is packed as {packing[:40]!r}, which was not asked for")
        unpacker = zlib.decompressobj(_GZIP_OR_ZLIB) if packing in ("gzip", "deflate") else None
        body = bytearray()
        async for chunk in response.aiter_raw():
            room = self.max_bytes - len(body) + 1
            try:
                body += chunk if unpacker is None else unpacker.decompress(chunk, room)
            except zlib.error as error:
                raise ToolError(f"the answer cannot be unpacked: {error}") from error
            if len(body) > self.max_bytes:
                return bytes(body[: self.max_bytes]), True
        return bytes(body), False


def checked_url(address: str) -> httpx.URL:
    """``address`` as a URL that may be looked at further.

    Raises:
        FetchRefused: not http or https, no host, or with a user name.
    """
    try:
        url = httpx.URL(address.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise FetchRefused(f"{address[:200]!r} is not a URL: {error}") from None
    if url.scheme not in _DEFAULT_PORTS or not url.host:
        raise FetchRefused(f"{address[:200]!r} is not an http or https URL")
    if url.userinfo:
        raise FetchRefused("a URL with a user name or password is not fetched")
    return url


def _joined(url: httpx.URL, location: str) -> str:
    try:
        return str(url.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise FetchRefused(f"{url} redirects to {location[:200]!r}, which is not a URL: {error}") from None


def _named(host: str) -> dict[str, str]:
    """What TLS must check the certificate against: the name, not the address that is connected to."""
    try:
        ip_address(host)
    except ValueError:
        return {"sni_hostname": host}
    return {}
