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
    tag, value = ORPHAN_TAG
    whose = "bucket"
    more: tuple[str, ...] = ()
    if bucket.format == "s3":
        match = {"Key": tag, "Value": value}
        orphans = {
            "ID": _ORPHANS,
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": bucket.folder, "Tags": [match]}} if bucket.prefix else {"Tag": match},
            "Expiration": {"Days": orphan_days},
        }
        # In a rule of its own: S3 refuses this action beside a filter by tag.
        incomplete = {
            "ID": _INCOMPLETE,
            "Status": "Enabled",
            "Filter": {"Prefix": bucket.folder},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": incomplete_days},
        }
        rules: dict[str, Any] = {"Rules": [orphans, incomplete]}
        target = f"--bucket {bucket.name} --lifecycle-configuration file://FILE"
        apply = f"aws s3api put-bucket-lifecycle-configuration {target}"
    elif bucket.format == "gcs":
        prefixes = {"matchesPrefix": [bucket.folder]} if bucket.prefix else {}
        condition = {"age": incomplete_days, **prefixes}
        rules = {"rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": condition}]}
        apply = f"gcloud storage buckets update gs://{bucket.name} --lifecycle-file=FILE"
        more = ("objects have no tags there, so only the collector removes orphans",)
    else:
        filters = {
            "blobTypes": ["blockBlob"],
            "prefixMatch": [f"{bucket.name}/{bucket.folder}"],
            "blobIndexMatch": [{"name": tag, "op": "==", "value": value}],
        }
        actions = {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": orphan_days}}}
        definition = {"filters": filters, "actions": actions}
        rules = {"rules": [{"name": _ORPHANS, "enabled": True, "type": "Lifecycle", "definition": definition}]}
        target = "--account-name ACCOUNT --resource-group GROUP --policy @FILE"
        apply, whose = f"az storage account management-policy create {target}", "account"
        more = ("Azure itself drops uploads that broke off, after a week",)
    replaces = f"applying replaces all rules of the {whose}: add your own to the file first"
    return Lifecycle(bucket, rules, (f"apply with: {apply}", replaces, *more))


def _named(name: str) -> str:
    if not name or name.startswith(".") or "@" in name or any(character.isspace() for character in name):
        raise Invalid("that names no bucket", hint="for example --bucket shop, or --bucket s3://shop/states")
    return name
