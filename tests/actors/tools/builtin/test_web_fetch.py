"""Fetching pages: never from a private network, never more than the limits, as text."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import httpx
import pytest

from umbel import HttpFetcher, web_fetch_tool
from umbel.actors.tools.builtin.addresses import reachable, refusal
from umbel.actors.tools.builtin.fetch import shown
from umbel.actors.tools.builtin.pages import Page
from umbel.actors.tools.invoke import invoke
from umbel.protocol.errors import FetchRefused, ToolError, ToolTimeout

Make = Callable[..., Any]
PUBLIC = "93.184.215.14"
OTHER = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"


class Names:
    """A name server whose answers change at every look-up of a name, as an attacker's may."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(several) for name, several in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        several = self.answers.get(host, [[host]])
        return several.pop(0) if len(several) > 1 else several[0]


class Web:
    """A network: it notes to which address each request goes, and answers by host name."""

    def __init__(self, **pages: httpx.Response) -> None:
        self.pages = {name.replace("_", "."): page for name, page in pages.items()}
        self.seen: list[tuple[str, str, dict[str, Any]]] = []
        self.down: set[str] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.url.host, request.headers["host"], dict(request.extensions)))
        if request.url.host in self.down:
            raise httpx.ConnectError("unreachable", request=request)
        fixed = self.pages[request.headers["host"].partition(":")[0]]
        return httpx.Response(fixed.status_code, headers=fixed.headers, stream=httpx.ByteStream(fixed.content))


def fetcher(web: Web, names: Names, **options: Any) -> HttpFetcher:
    return HttpFetcher(transport=httpx.MockTransport(web), resolve=names, **options)


def page(text: str = "hello", **headers: str) -> httpx.Response:
    return httpx.Response(200, text=text, headers=headers)


def moved(location: str) -> httpx.Response:
    return httpx.Response(302, headers={"location": location})


@pytest.mark.spec("TOOL-35", "BUG-46")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
        "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "239.1.1.1",
        "240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1", "::", "::1", "::7f00:1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "ff02::1",
        "2001:db8::1", "2001::1", "not an address", "",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert refusal(address) is not None


@pytest.mark.parametrize("address", [PUBLIC, OTHER, "8.8.8.8", "::ffff:8.8.8.8", "172.32.0.1", "2002:808:808::"])
def test_public_addresses(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.spec("TOOL-35", "BUG-46")
@pytest.mark.parametrize(
    ("address", "refused"),
    [("127.0.0.1", False), ("10.0.0.1", False), ("::1", False), ("169.254.169.254", True), ("::ffff:169.254.169.254", True),
     ("fd00:ec2::254", True), ("100.100.100.200", True), ("168.63.129.16", True), ("fe80::1", True)],
)  # fmt: skip
def test_private_networks_may_be_allowed_but_metadata_never(address: str, refused: bool) -> None:
    assert (refusal(address, allow_private=True) is not None) is refused


@pytest.mark.spec("TOOL-35", "BUG-46")
@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
async def test_other_spellings_of_this_machine_are_refused(host: str) -> None:
    with pytest.raises(FetchRefused):
        await HttpFetcher().fetch(f"http://{host}/")


@pytest.mark.spec("TOOL-35", "BUG-46")
async def test_it_connects_to_the_address_that_was_checked() -> None:
    web, names = Web(site_example=page()), Names(site_example=[[PUBLIC], ["127.0.0.1"]])
    found = await fetcher(web, names).fetch("https://site.example:8443/a?b=c#d")
    assert found.text == "hello"
    ((address, host, extensions),) = web.seen
    assert (address, host, extensions["sni_hostname"]) == (PUBLIC, "site.example:8443", "site.example")
    assert names.asked == ["site.example"], "a second look-up could lead elsewhere"


@pytest.mark.spec("TOOL-35", "BUG-46")
@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.1/", "http://inside.example/", "//169.254.169.254/latest", "http://[::1]:80/", "http://2130706433/"],
)
async def test_redirects_are_checked_like_the_first_address(location: str) -> None:
    web = Web(site_example=moved(location))
    names = Names(site_example=[[PUBLIC]], inside_example=[["10.1.2.3"]], **{"2130706433": [["127.0.0.1"]]})
    with pytest.raises(FetchRefused):
        await fetcher(web, names).fetch("http://site.example/")
    assert [address for address, _, _ in web.seen] == [PUBLIC]


@pytest.mark.spec("BUG-46")
async def test_a_name_that_changes_between_hops_is_refused() -> None:
    web, names = Web(site_example=moved("/again")), Names(site_example=[[PUBLIC], ["192.168.0.1"]])
    with pytest.raises(FetchRefused, match=r"192\.168\.0\.1"):
        await fetcher(web, names).fetch("http://site.example/")


@pytest.mark.spec("BUG-46")
async def test_of_several_addresses_only_public_ones_are_tried() -> None:
    web, names = Web(site_example=page()), Names(site_example=[["10.0.0.1", PUBLIC, OTHER]])
    web.down = {PUBLIC}
    assert (await fetcher(web, names).fetch("http://site.example/")).text == "hello"
    assert [address for address, _, _ in web.seen] == [PUBLIC, OTHER]
    web.down = {PUBLIC, OTHER}
    with pytest.raises(ToolError, match="ConnectError"):
        await fetcher(web, names).fetch("http://site.example/")
    with pytest.raises(FetchRefused, match="no address"):
        await reachable("nowhere", 80, resolve=Names(nowhere=[[]]))


async def test_redirects_are_followed_and_counted() -> None:
    web = Web(a_example=moved("http://b.example/x/"), b_example=moved("http://c.example/"), c_example=page())
    names = Names(a_example=[[PUBLIC]], b_example=[[PUBLIC]], c_example=[[OTHER]])
    assert (await fetcher(web, names, max_redirects=2).fetch("http://a.example")).url == "http://c.example/"
    with pytest.raises(ToolError, match="more than 1 times"):
        await fetcher(web, names, max_redirects=1).fetch("http://a.example")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://site.example/", "gopher://site.example", "//site.example", "site.example", "http://",
     "http://user:secret@site.example/", "javascript:alert(1)", ""],
)  # fmt: skip
async def test_what_is_no_web_address_is_refused(url: str) -> None:
    names = Names()
    with pytest.raises(FetchRefused):
        await fetcher(Web(), names).fetch(url)
    assert names.asked == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(404), "404 Not Found"),
        (httpx.Response(503, text="busy"), "503"),
        (httpx.Response(200, content=b"\x89PNG", headers={"content-type": "image/png"}), "image/png"),
        (httpx.Response(200, content=b"x", headers={"content-type": "text/plain", "content-encoding": "br"}), "'br'"),
    ],
)
async def test_answers_that_are_no_page(answer: httpx.Response, words: str) -> None:
    names = Names(site_example=[[PUBLIC]])
    with pytest.raises(ToolError, match=words):
        await fetcher(Web(site_example=answer), names).fetch("http://site.example/")


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def serving(
    answer: bytes, context: ssl.SSLContext | None = None, hold: asyncio.Event | None = None
) -> AsyncIterator[int]:
    """A real server on loopback that gives one fixed answer; its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if hold is not None:
            await hold.wait()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def answer(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_a_real_page_over_a_real_connection() -> None:
    body = gzip.compress("<title>Gr\u00fc\u00dfe</title><p>f\u00fcr <b>dich</b>".encode("latin-1"))
    async with serving(answer(body, "Content-Type: text/html; charset=latin-1", "Content-Encoding: gzip")) as port:
        found = await HttpFetcher(allow_private=True).fetch(f"http://127.0.0.1:{port}/")
    assert (found.title, found.text, found.truncated) == ("Gr\u00fc\u00dfe", "f\u00fcr dich", False)


@pytest.fixture
def certificate(tmp_path: Path, require_service: Callable[[str], str]) -> Path:
    """A certificate for good.example, with its key."""
    parts = [str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")]
    command = [
        require_service("openssl"),
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        parts[0],
        "-out",
        parts[1],
    ]
    name = ["-days", "2", "-subj", "/CN=good.example", "-addext", "subjectAltName=DNS:good.example"]
    subprocess.run([*command, *name], check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text("".join(Path(part).read_text() for part in parts))
    return both


@pytest.mark.spec("BUG-46")
async def test_the_certificate_must_be_for_the_name(certificate: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    trust = ssl.create_default_context(cafile=certificate)
    async with serving(answer(b"secret", "Content-Type: text/plain"), server) as port:
        for host, error in (("good.example", None), ("evil.example", "Hostname mismatch")):
            transport = httpx.AsyncHTTPTransport(verify=trust)
            careful = HttpFetcher(allow_private=True, resolve=loopback, transport=transport)
            if error is None:
                assert (await careful.fetch(f"https://{host}:{port}/")).text == "secret"
            else:
                with pytest.raises(ToolError, match=error):
                    await careful.fetch(f"https://{host}:{port}/")


async def test_a_small_packed_body_cannot_become_a_huge_one() -> None:
    bomb = gzip.compress(b"a" * 50_000_000)
    async with serving(answer(bomb, "Content-Type: text/plain", "Content-Encoding: gzip")) as port:
        found = await HttpFetcher(allow_private=True, max_bytes=1_000).fetch(f"http://127.0.0.1:{port}/")
    assert (found.text, found.truncated) == ("a" * 1_000, True)
    assert shown(found).endswith("[the page goes on; it is larger than the fetcher reads]")
    async with serving(answer(b"not packed", "Content-Type: text/plain", "Content-Encoding: gzip")) as port:
        with pytest.raises(ToolError, match="cannot be unpacked"):
            await HttpFetcher(allow_private=True).fetch(f"http://127.0.0.1:{port}/")


async def test_a_body_that_just_fits_is_whole() -> None:
    async with serving(answer(b"x" * 1_000, "Content-Type: text/plain")) as port:
        found = await HttpFetcher(allow_private=True, max_bytes=1_000).fetch(f"http://127.0.0.1:{port}/")
        assert (len(found.text), found.truncated) == (1_000, False)
        found = await HttpFetcher(allow_private=True, max_bytes=999).fetch(f"http://127.0.0.1:{port}/")
        assert (len(found.text), found.truncated) == (999, True)


async def test_a_server_that_never_answers_is_given_up() -> None:
    hold = asyncio.Event()
    async with serving(b"", hold=hold) as port:
        with pytest.raises(ToolTimeout, match=r"within 0\.2 s"):
            await HttpFetcher(allow_private=True, timeout=0.2).fetch(f"http://127.0.0.1:{port}/")
        hold.set()


@pytest.mark.spec("TOOL-34", "TOOL-35")
async def test_the_tool(request_for: Make) -> None:
    class Fixed:
        async def fetch(self, url: str) -> Page:
            return Page(url=url, text="x" * 60_000, title="Long")

    class Sync:
        def fetch(self, url: str) -> Page:
            return Page(url=f"{url}/final", text="short")

    web_fetch = pickle.loads(cloudpickle.dumps(web_fetch_tool(Fixed())))
    assert (web_fetch.name, web_fetch.parameters["properties"]["max_chars"]["default"]) == ("web_fetch", 50_000)
    lines = (await invoke(*request_for(web_fetch, url="http://a"))).content.split("\n")
    assert lines == ["URL: http://a", "Title: Long", "", "x" * 50_000, "[cut after 50,000 of 60,000 characters]"]
    few = (await invoke(*request_for(web_fetch, url="http://a", max_chars=3))).content
    assert "\nxxx\n" in few
    assert (await invoke(*request_for(web_fetch_tool(Sync()), url="u"))).content == "URL: u/final\n\nshort"
    refused = await invoke(*request_for(web_fetch_tool(), url="http://127.0.0.1:1/"))
    assert refused.code == "fetch_refused" and "127.0.0.1 is not a public address" in (refused.error or "")
