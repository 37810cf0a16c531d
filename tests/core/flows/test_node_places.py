"""Where nodes may go, which variables they may use and who may see them, and how the streams of models are read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import pytest

from analemma.errors import AnalemmaError, Denied, Invalid
from tests.core.entry_points.flows import Places, events, read_variables


def resolving(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda host, port: list(addresses)


def test_a_name_that_leads_to_private_and_public_addresses_is_spoken_to_at_the_public_ones() -> None:
    places = Places("public", resolving("10.0.0.1", "93.184.216.34", "::1"))
    assert places.check("https://example.com/x?y#z", None).addresses == ("93.184.216.34",)
    with pytest.raises(Denied):
        Places("public", resolving("10.0.0.1", "fe80::1%eth0")).check("https://example.com/", None)


NOT_PUBLIC = (
    "10.0.0.1 127.0.0.1 169.254.1.1 172.16.0.1 192.168.0.1 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 192.0.2.1 ::1 "
    ":: fe80::1 fc00::1 ff02::1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 2002:0a00:0001:: 2001:0:a00:1:: 2001:db8::1 "
    "192.0.0.9 192.88.99.1 168.63.129.16 fec0::1 3fff::1 ::ffff:168.63.129.16 64:ff9b::a83f:8110"
)
PUBLIC = "8.8.8.8 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::8.8.8.8"


def test_only_public_addresses_are_reached_where_nothing_is_listed() -> None:
    def is_reached(address: str) -> bool:
        try:
            return len(Places("public", resolving(address)).check("https://example.com/", None).addresses) == 1
        except Denied:
            return False

    assert [address for address in NOT_PUBLIC.split() if is_reached(address)] == []
    assert [address for address in PUBLIC.split() if not is_reached(address)] == []


def refused(function: Callable[[], object], kind: type[AnalemmaError], said: str = "") -> bool:
    try:
        function()
    except kind as exc:
        return said in str(exc)
    return False


def test_urls_that_are_none_are_refused() -> None:
    places = Places("public", resolving("8.8.8.8"))
    urls = ["ftp://h/", "//h/", "https://", "https://u:p@h/", "https://h:0/", "https://h\\@e/", "https://h /"]
    urls += [
        "https://h:x/",
        *(f"https://{host}/" for host in ("bücher.example", "\uff11\uff12\uff17.0.0.1", "a%2eb", "a_b!")),
    ]
    assert [url for url in urls if not refused(partial(places.check, url, None), Invalid)] == []


def test_places_are_listed_by_name() -> None:
    for allowed, url, fits in (
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://evilexample.com/", False),
        ("example.com", "https://EXAMPLE.com./", True),
        ("example.com:8080", "http://example.com/", False),
        ("example.com:8080", "http://example.com:8080/", True),
        ("[::1]:80", "http://[::1]/", True),
        ("none", "https://example.com/", False),
    ):
        places = Places(allowed, resolving("10.0.0.1"))
        if fits:
            assert places.check(url, None).addresses == ("10.0.0.1",), allowed
        else:
            assert refused(partial(places.check, url, None), Denied), (allowed, url)


def test_lists_with_something_else_are_refused() -> None:
    places = ["http://x", "a b", "*", "a/b", "-?"]
    assert [each for each in places if not refused(partial(Places, each), Invalid, "node_hosts")] == []
    variables = ["lower", "A B", "A@", "A@${b}", "A@h/x"]
    assert [
        each for each in variables if not refused(partial(read_variables, each, dict), Invalid, "node_variables")
    ] == []


ENVIRONMENT = {"KEY": "abcdefgh", "PLACE": "https://other.example.com:8443/x", "OTHER": "ijklmnop"}


def test_a_secret_is_not_sent_in_the_clear_to_a_host_that_nobody_named() -> None:
    filling = read_variables("KEY", lambda: {"KEY": "abcdefgh"}).of({})
    filling.text("${KEY}")
    with pytest.raises(Denied, match="unencrypted"):
        filling.check_host("example.com", is_safe=False)
    filling.check_host("example.com", is_safe=True)


def test_a_bound_variable_goes_to_its_host_only() -> None:
    variables = read_variables("KEY@api.example.com, PLACE, OTHER@${PLACE}", lambda: ENVIRONMENT)
    for name, host in (("KEY", "api.example.com"), ("OTHER", "other.example.com:8443")):
        filling = variables.of({})
        filling.text(f"${{{name}}}")
        filling.check_host(host, is_safe=True)
        for wrong in ("evil.example.com", "api.example.com.evil.com", f"{host}:1"):
            with pytest.raises(Denied, match=name):
                filling.check_host(wrong, is_safe=True)


def test_secrets_are_masked_wherever_they_come_back() -> None:
    filling = read_variables("KEY,PLACE", lambda: {**ENVIRONMENT, "KEY": "a/b+c d&e"}).of({})
    filling.text("${KEY} ${PLACE}")
    data = {"a/b+c d&e": ["x a/b+c d&e y", b"a/b+c d&e", 1], "url": "https://h/?k=a%2Fb%2Bc%20d%26e"}
    assert json.dumps(filling.masked({**data, "b": None}), default=str).count("***") == 4
    assert filling.mask(ENVIRONMENT["PLACE"]) == ENVIRONMENT["PLACE"]


def test_secrets_are_masked_as_forms_and_json_write_them() -> None:
    filling = read_variables("KEY", lambda: {"KEY": 'Basic a/"b"é'}).of({})
    filling.text("${KEY}")
    for text in ("Basic+a%2F%22b%22%C3%A9", r"Basic a/\"b\"\u00e9", r"Basic a/\"b\"é", "Basic%20a/%22b%22%C3%A9"):
        assert filling.masked({"a": [text]}) == {"a": ["***"]}
        assert filling.told(f"x {text}".encode()) == "x ***"


def test_lines_end_in_three_ways_wherever_they_are_cut() -> None:
    for end in ("\n", "\r", "\r\n"):
        text = end.join(["data: a", "data: b", "", ": ping", "", "data: c", "", ""]).encode()
        for piece in (1, 2, 3, 7):
            cut = (text[at : at + piece] for at in range(0, len(text), piece))
            assert list(events(cut)) == [b"a\nb", b"c"], (end, piece)


def test_long_lines_take_time_in_proportion_and_one_without_end_is_refused() -> None:
    began = time.process_time()
    assert [len(each) for each in events([b"data: "] + [b"a" * 100] * 40_000 + [b"\n\n"])] == [4_000_000]
    with pytest.raises(Exception, match="too long"):
        list(events([b"data: "] + [b"a" * 512] * (8 << 11)))
    # Joined with every piece it took half a minute.
    assert time.process_time() - began < 6
