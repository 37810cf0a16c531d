"""Settings: arguments, then `ANALEMMA_*` variables, then `analemma.toml`, then defaults; the first to name one wins.

`python -m analemma.settings docs/reference/settings.md` writes the reference page.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from analemma.errors import Invalid

PREFIX = "ANALEMMA_"
CONFIG_VARIABLE = "ANALEMMA_CONFIG"
"""Names the file to read instead of `analemma.toml` in the current directory."""
FILE_NAME = "analemma.toml"

MIB = 1024 * 1024

Place = Annotated[str, Field(min_length=1, max_length=4096)]


class Settings(BaseModel):
    """Everything that can be configured. Immutable; passwords do not show in its repr.

    >>> Settings(tenant="shop").tenant
    'shop'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Place | None = Field(None, description="The store: a directory, `sqlite:///path` or `postgresql://...`.")
    objects: Place | None = Field(
        None, description="Where large objects go. Unset: beside an embedded catalog, or into the database of a server."
    )
    tenant: str = Field("default", min_length=1, max_length=64, description="The tenant to work in.")
    sqlite_synchronous: Literal["FULL", "NORMAL"] = Field(
        "FULL", description="`NORMAL` is faster, and may lose the last commits when the power fails."
    )
    sqlite_lock_timeout_s: float = Field(
        5,
        ge=0.1,
        le=3600,
        description="A write on SQLite waits this long for another process, or another program, that has the file"
        " locked; while several take turns it waits on, up to a minute.",
    )
    postgres_pool_max: int = Field(8, ge=1, le=1000, description="Connections to PostgreSQL, at most.")
    postgres_prepare: bool = Field(
        True, description="Prepare statements on PostgreSQL; off for PgBouncer in transaction mode."
    )
    statement_timeout_s: float = Field(
        30,
        ge=0.1,
        le=86_400,
        description="A database statement may take this long, and a transaction on PostgreSQL may wait so long for the"
        " next: whoever is frozen keeps nobody else waiting any longer.",
    )
    connect_timeout_s: float = Field(10, ge=0.1, le=600, description="Connecting to a database may take this long.")
    auto_migrate: bool | None = Field(
        None, description="Migrate the schema when opening. Unset: yes when embedded (SQLite), no on a server."
    )
    pack_threshold_bytes: int = Field(
        262_144, ge=0, le=1024 * MIB, description="A save with more new bytes than this uploads one pack."
    )
    pack_after_s: float = Field(
        604_800, ge=0, le=10_000_000_000, description="Packing moves blocks that were stored longer ago than this."
    )
    pack_target_bytes: int = Field(
        16 * MIB, ge=65_536, le=64 * MIB, description="Packing fills packs up to about this size."
    )
    pack_least_bytes: int = Field(
        1 * MIB, ge=0, le=64 * MIB, description="Packing leaves less than this where it is, to wait for more."
    )
    pack_waste: float = Field(
        0.5, ge=0, le=0.99, description="Repacking writes packs anew of which more than this share is dead."
    )
    cache_bytes: int = Field(64 * MIB, ge=0, le=1024 * 1024 * MIB, description="Blocks kept in memory; 0 for none.")
    redis_url: Place | None = Field(None, description="A Redis server to cache blocks in, as `redis://...`.")
    redis_ttl_s: int = Field(300, ge=1, le=2_592_000, description="How long Redis keeps a block.")
    object_retries: int = Field(
        3, ge=1, le=20, description="Tries, in all, of an object store request that fails transiently."
    )
    object_retry_base_s: float = Field(
        0.5, ge=0, le=60, description="Pause before the second try; doubles with each, with jitter."
    )
    checkpoint_close_s: float = Field(
        5, ge=0, le=3600, description="Closing a store applies its pending checkpoints for at most this long."
    )
    idempotency_keep_s: float = Field(
        2_592_000,
        ge=0,
        le=10_000_000_000,
        description="An idempotency key gives its answer again for so long at least, and for as long as the version"
        " that was made under it is kept; after that it is a new one.",
    )
    version_node: int | None = Field(
        None,
        ge=0,
        le=1023,
        description="The node number in versions of entities made here; unset, one is leased. No two may share one.",
    )
    gc_interval_s: float = Field(
        3600, ge=1, le=31_536_000, description="A worker collects garbage when the newest run began this long ago."
    )
    gc_grace_s: float = Field(
        86_400, ge=0, le=31_536_000, description="Blocks that nothing leads to stay at least this long."
    )
    gc_upload_age_s: float = Field(
        86_400, ge=0, le=31_536_000, description="An upload whose commit has not come for so long is abandoned."
    )
    gc_object_delay_s: float = Field(
        604_800,
        ge=0,
        le=31_536_000,
        description="Objects stay this long after nothing names them: as old as a backup that may be restored.",
    )
    gc_session_idle_s: float = Field(
        86_400, ge=1, le=31_536_000, description="A session that has written nothing for so long is given up."
    )
    gc_lease_s: float = Field(
        300, ge=1, le=86_400, description="A collector that was not heard of for so long may be replaced."
    )
    gc_brake_unmarked: float = Field(
        1, ge=0, le=1, description="Nothing is collected if a larger share of a tenant's blocks is garbage."
    )
    gc_brake_drop: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Nothing is collected if the needed blocks of a tenant have become fewer by a larger share.",
    )
    gc_brake_blocks: int = Field(
        1000, ge=0, le=1_000_000_000, description="For fewer blocks than this, the two brakes above do not apply."
    )
    worker_concurrency: int = Field(4, ge=1, le=256, description="Threads in which a worker handles events.")
    run_lease_s: float = Field(
        30, ge=0.1, le=86_400, description="A run whose worker was not heard of for so long goes on elsewhere."
    )
    run_concurrency: int = Field(4, ge=0, le=256, description="Runs that a worker goes on with at a time.")
    run_poll_s: float = Field(1, ge=0.01, le=3600, description="How often an idle worker looks for runs to go on with.")
    node_hosts: Place = Field(
        "public",
        description="Where nodes of workflows may send to: names, `*.names`, addresses, networks, separated by commas;"
        " `public`, every public address; `none`. Hosts that variables name are allowed besides.",
    )
    node_variables: Place = Field(
        "OPENAI_BASE_URL,OPENAI_API_KEY@${OPENAI_BASE_URL}",
        description="Variables that documents may use, besides those that begin with `ANALEMMA_FLOW_`: names, separated"
        " by commas; with `@host` or `@${NAME}`, to be sent there only; or `none`.",
    )
    node_read_s: float = Field(
        120, ge=0.1, le=86_400, description="A node waits so long for the next part of an answer from a host."
    )
    llm_retries: int = Field(
        3, ge=0, le=20, description="How often a model is asked again that is busy, fails or does not answer."
    )
    code_isolation: Literal["namespaces", "limits", "refuse"] = Field(
        "namespaces",
        description="How code of workflows is run: without network and files, or not at all; with limits only; never.",
    )
    code_network: bool = Field(False, description="Whether code of workflows that asks for the network gets it.")
    code_python: Place | None = Field(
        None, description="The interpreter of code of workflows, with its packages. Unset: this one, without packages."
    )
    fanout_page: int = Field(
        100, ge=1, le=10_000, description="How many of those that join an entity are compiled in one transaction."
    )
    fanout_limit: int = Field(
        10_000,
        ge=1,
        le=1_000_000_000,
        description="If more than so many follow one change, the others are compiled when there is nothing else to do;"
        " for indexes without `maxFanout`.",
    )
    fanout_keep_s: float = Field(
        604_800, ge=0, le=10_000_000_000, description="Housekeeping keeps fanouts so long after they were done."
    )
    deploy_keep_s: float = Field(
        2_592_000, ge=0, le=10_000_000_000, description="Housekeeping keeps deploys so long after they were over."
    )
    outbox_batch: int = Field(2000, ge=1, le=10_000, description="Events that a worker takes at once, at most.")
    outbox_lease_s: float = Field(
        30, ge=0.1, le=86_400, description="A worker that was not heard of for so long loses what it holds."
    )
    outbox_max_attempts: int = Field(
        5, ge=1, le=1000, description="An event that has failed so often is dead, and parks its aggregate."
    )
    outbox_backoff_base_s: float = Field(
        1, ge=0, le=3600, description="Longest pause before an event's second try; doubles with each, with full jitter."
    )
    outbox_backoff_max_s: float = Field(
        300, ge=0, le=86_400, description="The pause between two tries of an event is never longer."
    )
    outbox_poll_busy_s: float = Field(
        0.1, ge=0.001, le=3600, description="How often a worker looks for events that it was not told of, when busy."
    )
    outbox_poll_idle_s: float = Field(1, ge=0.001, le=3600, description="The same after a while without any.")
    outbox_keep_processed_s: float = Field(
        604_800, ge=0, le=10_000_000_000, description="Housekeeping keeps events so long after their delivery."
    )
    outbox_keep_dead_s: float = Field(
        2_592_000, ge=0, le=10_000_000_000, description="Housekeeping keeps events so long after they were discarded."
    )
    backfill_lease_s: float = Field(
        30, ge=0.5, le=3600, description="A backfill whose process died can be taken over after this."
    )
    backfill_page: int = Field(100, ge=1, le=1000, description="Entities that a backfill takes at a time.")
    outbox_warn_pending: int = Field(
        1000, ge=0, le=1_000_000_000, description="More events than this that wait are a problem."
    )
    outbox_warn_oldest_s: float = Field(
        300, ge=0, le=31_536_000, description="An event that waits longer than this is a problem."
    )
    outbox_warn_stale: int = Field(
        20, ge=0, le=1_000_000_000, description="More leases of lost workers than this are a problem."
    )
    outbox_warn_dead: int = Field(0, ge=0, le=1_000_000_000, description="More dead events than this are a problem.")
    ship_base: Place | None = Field(
        None,
        description="Where relative paths in sink rules begin. Unset: beside an embedded catalog; for a server, where"
        " the worker was started.",
    )
    ship_threads: int = Field(16, ge=1, le=1024, description="Sinks that a worker ships to at the same time.")
    ship_max_attempts: int = Field(
        20,
        ge=1,
        le=100_000,
        description="A document that a sink failed to take so often, while it took others, is dead.",
    )
    ship_rest_s: float = Field(
        1,
        ge=0.001,
        le=3600,
        description="A sink that does not answer is left alone for so long; doubles with each time.",
    )
    ship_rest_max_s: float = Field(
        60, ge=0.001, le=86_400, description="A sink is left alone no longer, unless it asks for it."
    )
    archive_format: Literal["tar", "blocks"] = Field(
        "tar", description="How workspaces are archived: as one compressed tar, or as blocks that archives share."
    )
    archive_level: int = Field(3, ge=1, le=19, description="How hard zstd tries when it compresses a tar.")
    archive_timeout_s: float = Field(
        1800, ge=0.1, le=31_536_000, description="Archiving or restoring a workspace may take this long."
    )
    archive_lease_s: float = Field(
        60, ge=0.1, le=86_400, description="The operation of a worker that was not heard of for so long is taken over."
    )
    archive_outside_links: Literal["refuse", "keep"] = Field(
        "refuse", description="What to do with symbolic links that may lead out of a workspace's volume."
    )
    archive_limit_bytes: int = Field(
        1024 * 1024 * MIB, ge=0, le=2**60, description="An archive that holds more bytes of files is not restored."
    )
    archive_limit_files: int = Field(
        10_000_000,
        ge=0,
        le=2**40,
        description="An archive that holds more files and directories is not restored.",
    )
    archive_verify_age_s: float = Field(
        0.0,
        ge=0,
        le=366 * 86_400,
        description="Archived as blocks, files that nobody touched since they were restored do not have their blocks "
        "read again if the restore, which read them, was within this many seconds. With 0 everything is read.",
    )
    archive_gc_delay_s: float = Field(
        604_800,
        ge=0,
        le=31_536_000,
        description="Archives that no workspace needs stay at least this long: so long a deleted workspace comes back.",
    )
    archive_gc_filter: Literal["merge", "bloom"] = Field(
        "merge", description="How needed archives are told from others: exactly, or by a Bloom filter first."
    )
    unknown_types: Literal["refuse", "keep"] = Field(
        "refuse", description="What to do with a stored value whose type is not registered."
    )
    payload_field_bytes: int = Field(
        10_240, ge=0, le=1024 * MIB, description="A field of a payload that takes more than this becomes a pointer."
    )
    payload_target_bytes: int = Field(
        10_240, ge=0, le=1024 * MIB, description="Fields leave a payload for as long as it is larger than this."
    )
    payload_limit_bytes: int = Field(
        262_144, ge=0, le=1024 * MIB, description="A payload that stays larger than this is refused."
    )
    payload_event_bytes: int = Field(
        16 * MIB, ge=0, le=1024 * MIB, description="An event that takes more than this is refused."
    )
    payload_lease_s: float = Field(
        2_592_000,
        ge=0,
        le=10_000_000_000,
        description="Pointers of an execution that was not released end when none was made or used for so long.",
    )
    payload_s3_buckets: Place | None = Field(
        None,
        description="Buckets, separated by commas, whose `__s3_pointer__`s are read: names or `s3://bucket?...`.",
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**{**_read_file(), **_read_variables(), **values})
        except ValidationError as exc:
            raise _explained(exc, values) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """What the documentation says about one setting."""

    name: str
    variable: str
    expected: str
    default: str
    description: str


def describe_settings() -> list[SettingDescription]:
    """One row per setting, in the order of declaration."""
    return [
        SettingDescription(name, _variable(name), _expected(field), _shown_default(field), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def settings_page() -> str:
    """The reference page, in Markdown."""
    lines = [
        "# Settings",
        "",
        "A setting comes from the first of these that names it: an argument, an environment variable, a file, the",
        f"default. The file is `{FILE_NAME}` in the current directory, or the one that `{CONFIG_VARIABLE}` names; its",
        "keys are the names below, and a key that is not below is an error. An empty variable counts as unset.",
        "",
        "| name | variable | value | default | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{row.name}` | `{row.variable}` | {row.expected} | {row.default} | {row.description} |"
        for row in describe_settings()
    ]
    lines += ["", "This page is written by `python -m analemma.settings docs/reference/settings.md`.", ""]
    return "\n".join(lines)


# Up to the last "@": rather too much than half of a password that was not escaped.
_PASSWORD = re.compile(r"^([^:/?#]+://[^:/?#@]*):.*@", re.DOTALL)
_SECRET_PARAMETER = re.compile(
    r"([?&;][^=&;]*(?:secret|password|token|key|credential|signature|sas)[^=&;]*=)[^&;]*", re.IGNORECASE
)


def redact(url: str) -> str:
    """The URL without passwords and keys, fit for logs and messages.

    >>> redact("postgresql://ann:secret@db/shop?password=x")
    'postgresql://ann:***@db/shop?password=***'
    """
    return _SECRET_PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def _read_variables() -> dict[str, str]:
    found = ((name, os.environ.get(_variable(name))) for name in Settings.model_fields)
    return {name: value for name, value in found if value}


def _read_file() -> dict[str, Any]:
    path = _file_path()
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        hint = f"{CONFIG_VARIABLE} names it" if os.environ.get(CONFIG_VARIABLE) else None
        raise Invalid(f"cannot read {path}: {exc.strerror}", hint=hint, file=str(path)) from exc
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise Invalid(f"{path} is not TOML: {exc}", file=str(path)) from exc


def _file_path() -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def _explained(error: ValidationError, arguments: dict[str, Any]) -> Invalid:
    """One line that says, for each bad value, where it came from and what is expected there."""
    reasons: list[str] = []
    hint = None
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0])
        source = _source(name, arguments)
        if detail["type"] == "extra_forbidden":
            reasons.append(f"{source}: there is no such setting")
            close = get_close_matches(name, Settings.model_fields, n=1) or [", ".join(Settings.model_fields)]
            hint = f"did you mean {close[0]}?" if "," not in close[0] else f"settings are {close[0]}"
        else:
            expected = _expected(Settings.model_fields[name]).replace("`", "")
            # A URL may hold a password, so what was given is not repeated there.
            secret = name in ("url", "objects", "redis_url", "payload_s3_buckets")
            given = "" if secret else f", got {repr(detail['input'])[:80]}"
            reasons.append(f"{source}: expected {expected}{given}")
    return Invalid("; ".join(reasons), hint=hint)


def _source(name: str, arguments: dict[str, Any]) -> str:
    if name in arguments:
        return f"setting {name}"
    if name in Settings.model_fields and os.environ.get(_variable(name)):
        return _variable(name)
    return f"{name} in {_file_path()}"


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _expected(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    choices = get_args(annotation)
    kind = next((choice for choice in choices if choice is not type(None)), annotation)
    limits = _limits([*field.metadata, *getattr(kind, "__metadata__", ())])
    if choices and all(isinstance(choice, str) for choice in choices):
        return " or ".join(f"`{choice}`" for choice in choices)
    if kind is bool:
        return "`true` or `false`"
    if kind is int:
        return f"an integer from {limits['ge']} to {limits['le']}"
    if kind is float:
        return f"a number from {limits['ge']} to {limits['le']}"
    return f"text of {limits['min_length']} to {limits['max_length']} characters"


def _limits(metadata: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in metadata:
        found |= _limits(part.metadata) if isinstance(part, FieldInfo) else {}
        for name in ("ge", "le", "min_length", "max_length"):
            if hasattr(part, name):
                found[name] = getattr(part, name)
    return found


def _shown_default(field: FieldInfo) -> str:
    default = field.default
    if default is None:
        return "unset"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(settings_page(), encoding="utf-8")
