"""Lifecycle rules match orphans and broken uploads, and nothing else."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from analemma.errors import Invalid
from tests.core.entry_points.gc import Bucket, LifecycleFormat, lifecycle, parse_bucket

FORMATS: list[LifecycleFormat] = ["s3", "gcs", "azure"]
TAG = {"Key": "status", "Value": "orphan"}


def test_s3_expires_only_what_is_tagged() -> None:
    orphans, incomplete = lifecycle(Bucket("shop", "states"), orphan_days=3, incomplete_days=2).rules["Rules"]
    assert orphans["Filter"] == {"And": {"Prefix": "states/", "Tags": [TAG]}}
    assert orphans["Expiration"] == {"Days": 3}
    # S3 refuses both in one rule.
    assert "AbortIncompleteMultipartUpload" not in orphans and "Expiration" not in incomplete
    assert incomplete["Filter"] == {"Prefix": "states/"}
    assert incomplete["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 2}


def test_s3_of_a_whole_bucket_filters_by_the_tag_alone() -> None:
    orphans, incomplete = lifecycle(Bucket("shop")).rules["Rules"]
    assert (orphans["Filter"], incomplete["Filter"]) == ({"Tag": TAG}, {"Prefix": ""})


def test_gcs_cannot_match_tags_so_it_deletes_nothing() -> None:
    made = lifecycle(Bucket("shop", "states", "gcs"))
    (rule,) = made.rules["rule"]
    assert rule["action"] == {"type": "AbortIncompleteMultipartUpload"}
    assert rule["condition"] == {"age": 7, "matchesPrefix": ["states/"]}
    assert any("only the collector" in note for note in made.notes)


def test_azure_matches_the_index_tag() -> None:
    (rule,) = lifecycle(Bucket("shop", "states", "azure")).rules["rules"]
    filters = rule["definition"]["filters"]
    assert filters["blobIndexMatch"] == [{"name": "status", "op": "==", "value": "orphan"}]
    assert filters["prefixMatch"] == ["shop/states/"]


def test_no_rule_deletes_without_the_tag_or_names_temp() -> None:
    for format, prefix in itertools.product(FORMATS, ["", "states"]):
        rules: dict[str, Any] = lifecycle(Bucket("shop", prefix, format)).rules
        text = json.dumps(rules)
        assert "temp" not in text and "Transition" not in text and "tier" not in text, (format, prefix)
        for rule in next(iter(rules.values())):
            one = json.dumps(rule)
            deletes = "Expiration" in one or '"delete"' in one or '"Delete"' in one
            assert deletes == ("orphan" in one and "status" in one), one
            assert deletes or "AbortIncompleteMultipartUpload" in one, one


def test_buckets_are_named_as_object_stores_are() -> None:
    named = {
        "shop": Bucket("shop"),
        "shop/states/": Bucket("shop", "states"),
        "s3://shop/a/b?region=eu&secret_access_key=hidden": Bucket("shop", "a/b"),
        "gs://shop": Bucket("shop", "", "gcs"),
        "az://shop/states": Bucket("shop", "states", "azure"),
    }
    assert {text: parse_bucket(text) for text in named} == named


def test_what_is_no_bucket_is_refused() -> None:
    for text in ("", "/srv/objects", "./objects", "file:///srv", "memory://", "s3://", "s3://a:b@c/d"):
        with pytest.raises(Invalid):
            parse_bucket(text)


def test_a_url_says_its_format_itself() -> None:
    with pytest.raises(Invalid, match="azure"):
        parse_bucket("s3://shop", "azure")
    assert parse_bucket("shop", "azure").format == "azure"


def test_rules_wait_for_a_day_at_least() -> None:
    with pytest.raises(Invalid):
        lifecycle(Bucket("shop"), orphan_days=0)
