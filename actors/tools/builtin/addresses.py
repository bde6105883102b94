"""Which network addresses a fetched URL may lead to (TOOL-35, BUG-46)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from ....protocol.errors import FetchRefused, ToolError

Resolve = Callable[[str, int], Awaitable[list[str]]]

# Of clouds: link-local ones, and those that are not. Refused whatever is allowed.
_METADATA = tuple(
    ip_network(each)
    for each in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32")
)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of ``host``, in the order in which the system would try them.

    Raises:
        ToolError: the name is not known.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(info[4][0]) for info in found))


async def reachable(host: str, port: int, *, allow_private: bool = False, resolve: Resolve = resolve) -> list[str]:
    """The addresses of ``host`` that may be connected to. Connect to these, not to the name, which may change its mind.

    Raises:
        FetchRefused: it has addresses, and none of them is allowed.
        ToolError: the name is not known.
    """
    addresses = await resolve(host, port)
    reasons = {address: refusal(address, allow_private=allow_private) for address in addresses}
    allowed = [address for address in addresses if reasons[address] is None]
    if not allowed:
        why = "; ".join(dict.fromkeys(reason for reason in reasons.values() if reason)) or "it has no address"
        raise FetchRefused(f"{host} may not be fetched: {why}")
    return allowed


def refusal(address: str, *, allow_private: bool = False) -> str | None:
    """Why ``address`` may not be connected to; None if it may."""
    try:
        found = _embedded(ip_address(address))
    except ValueError:
        return f"{address[:60]!r} is not an address"
    if any(found in network for network in _METADATA if network.version == found.version):
        return f"{address} is a link-local or metadata address"
    if allow_private:
        return None
    if not found.is_global or found.is_multicast or found.is_reserved or found.is_unspecified:
        return f"{address} is not a public address"
    return None


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 one leads to, if it does."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address.sixtofour or address
    return address
