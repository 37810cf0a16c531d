"""Rules for a bucket's own housekeeping: what the collector has tagged as an orphan because it could not delete it, and
uploads that broke off.

Nothing else: how old an object is says nothing about who needs it, and a `temp` tag may be one whose removal was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from analemma.blocks.port import check_prefix
from analemma.errors import Invalid

LifecycleFormat = Literal["s3", "gcs", "azure"]
FORMATS: dict[str, LifecycleFormat] = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""By the scheme of an object store's URL."""

ORPHAN_TAG = ("status", "orphan")
"""Set by the collector on objects that it has claimed and could not delete, where the store has tags. Nothing undoes a
claim."""
ORPHAN_DAYS = 7
INCOMPLETE_DAYS = 7

_ORPHANS = "analemma-orphans"
_INCOMPLETE = "analemma-incomplete-uploads"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Which objects the rules are for."""

    name: str
    prefix: str = ""
    """A folder, without a slash at its end; empty: all of the bucket."""
    format: LifecycleFormat = "s3"

    @property
    def folder(self) -> str:
        """What keys begin with."""
        return f"{self.prefix}/" if self.prefix else ""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The rules, as the cloud's own tool takes them, and what to know about them."""

    bucket: Bucket
    rules: dict[str, Any]
    notes: tuple[str, ...]


Made = tuple[dict[str, Any], str, str] | tuple[dict[str, Any], str, str, str]
"""The rules, how to apply them, what all rules belong to, and perhaps what else to know."""


def parse_bucket(text: str, format: LifecycleFormat | None = None) -> Bucket:
    """A bucket's name, or the URL of an object store.

    >>> parse_bucket("gs://shop/states")
    Bucket(name='shop', prefix='states', format='gcs')
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        name, _, prefix = text.partition("/")
        return Bucket(_named(name), check_prefix(prefix.strip("/")), format or "s3")
    if scheme not in FORMATS:
        raise Invalid(f"a store at {scheme}:// has no lifecycle rules", hint="name a bucket, or s3://, gs:// or az://")
    if format is not None and format != FORMATS[scheme]:
        raise Invalid(f"{scheme}:// is no bucket of the format {format}", hint="leave out --format")
    parts = urlsplit(text)
    return Bucket(_named(parts.netloc), check_prefix(unquote(parts.path).strip("/")), FORMATS[scheme])


def lifecycle(bucket: Bucket, *, orphan_days: int = ORPHAN_DAYS, incomplete_days: int = INCOMPLETE_DAYS) -> Lifecycle:
    """The rules of a bucket.

    >>> lifecycle(Bucket("shop")).rules["Rules"][0]["Filter"]
    {'Tag': {'Key': 'status', 'Value': 'orphan'}}
    """
    if orphan_days < 1 or incomplete_days < 1:
        raise Invalid("a lifecycle rule waits for a day at least", hint="give a number of days from 1 on")
    rules_of = {"s3": _s3, "gcs": _gcs, "azure": _azure}[bucket.format]
    rules, apply, whose, *more = rules_of(bucket, orphan_days, incomplete_days)
    replaces = f"applying replaces all rules of the {whose}: add your own to the file first"
    return Lifecycle(bucket, rules, (f"apply with: {apply}", replaces, *more))


def _s3(bucket: Bucket, orphan_days: int, incomplete_days: int) -> Made:
    tag = {"Key": ORPHAN_TAG[0], "Value": ORPHAN_TAG[1]}
    orphans: dict[str, Any] = {
        "ID": _ORPHANS,
        "Status": "Enabled",
        "Filter": {"And": {"Prefix": bucket.folder, "Tags": [tag]}} if bucket.prefix else {"Tag": tag},
        "Expiration": {"Days": orphan_days},
    }
    # In a rule of its own: S3 refuses this action beside a filter by tag.
    incomplete: dict[str, Any] = {
        "ID": _INCOMPLETE,
        "Status": "Enabled",
        "Filter": {"Prefix": bucket.folder},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": incomplete_days},
    }
    apply = f"aws s3api put-bucket-lifecycle-configuration --bucket {bucket.name} --lifecycle-configuration file://FILE"
    return {"Rules": [orphans, incomplete]}, apply, "bucket"


def _gcs(bucket: Bucket, orphan_days: int, incomplete_days: int) -> Made:
    condition: dict[str, Any] = {"age": incomplete_days}
    if bucket.prefix:
        condition["matchesPrefix"] = [bucket.folder]
    rule = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": condition}
    apply = f"gcloud storage buckets update gs://{bucket.name} --lifecycle-file=FILE"
    return {"rule": [rule]}, apply, "bucket", "objects have no tags there, so only the collector removes orphans"


def _azure(bucket: Bucket, orphan_days: int, incomplete_days: int) -> Made:
    match = {"name": ORPHAN_TAG[0], "op": "==", "value": ORPHAN_TAG[1]}
    filters = {
        "blobTypes": ["blockBlob"],
        "prefixMatch": [f"{bucket.name}/{bucket.folder}"],
        "blobIndexMatch": [match],
    }
    delete = {"daysAfterModificationGreaterThan": orphan_days}
    rule = {
        "name": _ORPHANS,
        "enabled": True,
        "type": "Lifecycle",
        "definition": {"filters": filters, "actions": {"baseBlob": {"delete": delete}}},
    }
    apply = "az storage account management-policy create --account-name ACCOUNT --resource-group GROUP --policy @FILE"
    return {"rules": [rule]}, apply, "account", "Azure itself drops uploads that broke off, after a week"


def _named(name: str) -> str:
    if not name or name.startswith(".") or "@" in name or any(character.isspace() for character in name):
        raise Invalid("that names no bucket", hint="for example --bucket shop, or --bucket s3://shop/states")
    return name
