"""Where nodes may send to. A name is looked up once, what it leads to is judged, and that very address is spoken
to: a name that leads elsewhere a moment later changes nothing."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from analemma.errors import Denied, Invalid, Unavailable

PUBLIC: Final = "public"
"""In the list of places: every address that is routed in the public internet."""
NONE: Final = "none"
"""Alone in the list: no place at all."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], list[str]]
"""The addresses of a host."""

_UNFIT: Final = re.compile(r"[\x00-\x20\x7f\\]")
_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?(?::\d{1,5})?|\[[0-9a-f:.]+\](?::\d{1,5})?")
_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]*:[0-9a-f:.]*(?:%[a-z0-9._-]+)?")
_NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        # What Python's own list lacks, in one version or another: protocol assignments, the relays of 6to4, the inside
        # of Azure, site-local addresses, documentation.
        ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "fec0::/10", "3fff::/20"),
    )
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes: a URL that was allowed, and the addresses that it may be sent to."""

    url: SplitResult
    host: str
    """As it is named, with its port if that is not the usual one: for messages, and for the Host header."""
    port: int
    addresses: tuple[str, ...]
    is_listed: bool
    """Whether somebody named the host, and not only the kind of address."""

    def at(self, address: str) -> str:
        """The URL with an address in the place of the host's name."""
        shown = f"[{address}]" if ":" in address else address
        path = self.url.path or "/"
        query = f"?{self.url.query}" if self.url.query else ""
        return f"{self.url.scheme}://{shown}:{self.port}{path}{query}"


def resolve(host: str, port: int) -> list[str]:
    """What the machine's own resolver says."""
    return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


class Places:
    """The places that documents may send to: names, `*.names`, addresses and networks; or `public`.

    >>> places = Places("api.example.com, 10.1.0.0/16, *.internal:8080", lambda host, port: ["10.2.0.1"])
    >>> places.check("http://api.example.com/x", None).addresses
    ('10.2.0.1',)
    >>> places.check("http://other.example.com/", None)
    Traceback (most recent call last):
        ...
    analemma.errors.Denied: nodes may not send to other.example.com (the setting node_hosts says where to)
    """

    def __init__(self, allowed: str, resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._names: set[str] = set()
        self._networks: list[IpNetwork] = []
        self._public = False
        for entry in filter(None, (each.strip().lower() for each in allowed.split(","))):
            self._allow(entry)

    def check(self, url: str, place: str | None) -> Destination:
        """Where a URL leads; Denied if documents may not send there. `place` is the host that whoever runs the program
        named in a variable: there they may."""
        parts, host, port = _parse(url)
        shown = _shown(host, port, parts.scheme)
        is_listed = shown == place or self._is_listed(host, port)
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError) as exc:
            raise Unavailable(
                f"the host {host} cannot be found ({type(exc).__name__})", hint="look at its name"
            ) from None
        fit = [each for each in addresses if is_listed or self._is_allowed(_address(each))]
        if not fit:
            raise Denied(
                f"nodes may not send to {shown}",
                hint="the setting node_hosts says where to",
                host=shown,
            )
        return Destination(parts, shown, port, tuple(fit), is_listed)

    def _allow(self, entry: str) -> None:
        if entry in (PUBLIC, NONE):
            self._public |= entry == PUBLIC
            return
        try:
            self._networks.append(ipaddress.ip_network(entry))
            return
        except ValueError:
            pass
        if not _NAME.fullmatch(entry):
            raise Invalid(
                f"node_hosts: {entry!r} is no place",
                hint="write names, *.names, name:port, addresses, networks or `public`, separated by commas",
            )
        self._names.add(entry)

    def _is_listed(self, host: str, port: int) -> bool:
        bare = host.rstrip(".")
        shown = f"[{bare}]" if ":" in bare else bare
        labels = bare.split(".")
        above = {"*." + ".".join(labels[count:]) for count in range(1, len(labels))}
        return any(name in self._names or f"{name}:{port}" in self._names for name in {shown, *above})

    def _is_allowed(self, address: IpAddress | None) -> bool:
        if address is None:
            return False
        inner = _inner(address)
        if any(
            each in network
            for network in self._networks
            for each in {address, inner}
            if each.version == network.version
        ):
            return True
        return self._public and is_public(address)


def is_public(address: IpAddress) -> bool:
    """Whether an address is one of the public internet: not of this machine, of a network nearby, or of nobody."""
    inner = _inner(address)
    if isinstance(address, ipaddress.IPv6Address) and (address.sixtofour or address.teredo):
        return False
    if any(inner in network for network in _NOT_PUBLIC if network.version == inner.version):
        return False
    return inner.is_global and not (
        inner.is_multicast or inner.is_reserved or inner.is_unspecified or inner.is_loopback
    )


def host_of(url: str) -> str:
    """The host that a URL names, with its port if that is not the usual one; empty if it names none."""
    try:
        parts, host, port = _parse(url)
    except Invalid:
        return ""
    return _shown(host, port, parts.scheme)


def _inner(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 one only wraps."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _TRANSLATED:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _address(text: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _parse(url: str) -> tuple[SplitResult, str, int]:
    if _UNFIT.search(url):
        raise Invalid("the URL has a space, a control character or a backslash", hint="escape it")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").lower()
    except ValueError as exc:
        raise Invalid("the URL is none", hint="write https://host/path") from exc
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise Invalid("the URL names no host to send to", hint="it begins with https:// or http://")
    if not _HOST.fullmatch(host):
        raise Invalid(
            "the host of the URL has characters that no name of a host has",
            hint="write names of other alphabets in their ASCII form: xn--...",
        )
    if parts.username is not None or parts.password is not None:
        raise Invalid("the URL has a user name in it", hint="send it as a header")
    if port == 0:
        raise Invalid("the URL has the port 0", hint="leave it out")
    return parts, host, _DEFAULT_PORTS[parts.scheme] if port is None else port


def _shown(host: str, port: int, scheme: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == _DEFAULT_PORTS[scheme] else f"{shown}:{port}"
