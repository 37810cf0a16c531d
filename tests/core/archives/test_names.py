"""The keys of archives: which are ours."""

from __future__ import annotations

from analemma.archives.names import parse_key


def test_keys_that_do_not_parse_are_not_ours() -> None:
    good = "tenants/shop/archives/ws1/op1/home.meta"
    found = parse_key("shop", good)
    assert found is not None and (found.workspace, found.op_id, found.name) == ("ws1", "op1", "home.meta")
    for bad in (
        good + "x",
        good.replace("shop", "shop2"),
        "x" + good,
        "tenants/shop/archives/ws1/home.meta",
        "tenants/shop/archives/ws1/op1/deeper/home.meta",
        "tenants/shop/archives/ws1/op1/home-1.tar.zst",
        "tenants/shop/archives//op1/home.meta",
        "tenants/shop/archives/ws1/op 1/home.meta",
        "packs/ab/cd",
    ):
        assert parse_key("shop", bad) is None
