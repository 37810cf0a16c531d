"""Settings: arguments, then `ANALEMMA_*` variables, then `analemma.toml`, then defaults; the first to name one wins."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from analemma.errors import Invalid

PREFIX = "ANALEMMA_"
CONFIG_VARIABLE = "ANALEMMA_CONFIG"
"""Names the file to read instead of `analemma.toml` in the current directory."""
FILE_NAME = "analemma.toml"

MIB = 1024 * 1024

# As pydantic reads them: in any case.
_FLAGS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


class Setting(NamedTuple):
    """What one setting may be."""

    meaning: str
    default: Any
    kind: Literal["text", "integer", "number", "flag", "choice"]
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()

    def read(self, given: Any) -> Any:
        """What is meant by a value from a program, a variable or a file; ValueError for what it cannot be."""
        if given is None and self.default is None:
            return None
        if self.kind == "choice" and given in self.choices:
            return given
        if self.kind == "text" and isinstance(given, str) and self.least <= len(given) <= self.most:
            return given
        if self.kind == "flag" and (found := _FLAGS.get(str(given).lower())) is not None:
            return found
        if self.kind in ("integer", "number") and isinstance(given, str | int | float):
            number = float(given) if self.kind == "number" else _integer(given)
            if self.least <= number <= self.most:
                return number
        raise ValueError

    def expected(self) -> str:
        """What it may be, for people."""
        if self.kind == "choice":
            return " or ".join(f"`{choice}`" for choice in self.choices)
        if self.kind == "flag":
            return "`true` or `false`"
        if self.kind == "text":
            return f"text of {self.least} to {self.most} characters"
        return f"{'an integer' if self.kind == 'integer' else 'a number'} from {self.least} to {self.most}"


# Each gives what a class says of a setting; an instance has the value, which is why they are said to give anything.
def text(meaning: str, default: str | None, most: int = 4096) -> Any:
    return Setting(meaning, default, "text", 1, most)


def integer(meaning: str, default: int | None, least: int, most: int) -> Any:
    return Setting(meaning, default, "integer", least, most)


def number(meaning: str, default: float, least: float, most: float) -> Any:
    return Setting(meaning, default, "number", least, most)


def flag(meaning: str, default: bool | None) -> Any:
    return Setting(meaning, default, "flag")


def choice(meaning: str, *choices: str) -> Any:
    """One of these words; unset, the first."""
    return Setting(meaning, choices[0], "choice", choices=choices)


class Settings:
    """Everything that can be configured. Immutable; passwords do not show in its repr.

    >>> Settings(tenant="shop").tenant
    'shop'
    """

    url: str | None = text("The store: a directory, `sqlite:///path` or `postgresql://...[?schema=NAME]`.", None)
    objects: str | None = text(
        "Where large objects go. Unset: beside an embedded catalog, or into the database of a server.", None
    )
    tenant: str = text("The tenant to work in.", "default", 64)
    owner: str | None = text("Whose workflows are meant where no owner is named.", None, 512)
    sqlite_synchronous: Literal["FULL", "NORMAL"] = choice(
        "`NORMAL` is faster, and may lose the last commits when the power fails.", "FULL", "NORMAL"
    )
    sqlite_lock_timeout_s: float = number(
        "A write on SQLite waits this long for another process, or another program, that has the file locked; while"
        " several take turns it waits on, up to a minute.",
        5,
        0.1,
        3600,
    )
    postgres_pool_max: int = integer("Connections to PostgreSQL, at most.", 8, 1, 1000)
    postgres_prepare: bool = flag("Prepare statements on PostgreSQL; off for PgBouncer in transaction mode.", True)
    statement_timeout_s: float = number(
        "A database statement may take this long, and a transaction on PostgreSQL may wait so long for the next:"
        " whoever is frozen keeps nobody else waiting any longer.",
        30,
        0.1,
        86_400,
    )
    connect_timeout_s: float = number("Connecting to a database may take this long.", 10, 0.1, 600)
    auto_migrate: bool | None = flag(
        "Migrate the schema when opening. Unset: yes when embedded (SQLite), no on a server.", None
    )
    pack_threshold_bytes: int = integer(
        "A save with more new bytes than this uploads one pack.", 262_144, 0, 1024 * MIB
    )
    pack_after_s: float = number(
        "Packing moves blocks that were stored longer ago than this.", 604_800, 0, 10_000_000_000
    )
    pack_target_bytes: int = integer("Packing fills packs up to about this size.", 16 * MIB, 65_536, 64 * MIB)
    pack_least_bytes: int = integer(
        "Packing leaves less than this where it is, to wait for more.", 1 * MIB, 0, 64 * MIB
    )
    pack_waste: float = number("Repacking writes packs anew of which more than this share is dead.", 0.5, 0, 0.99)
    cache_bytes: int = integer("Blocks kept in memory; 0 for none.", 64 * MIB, 0, 1024 * 1024 * MIB)
    redis_url: str | None = text("A Redis server to cache blocks in, as `redis://...`.", None)
    redis_ttl_s: int = integer("How long Redis keeps a block.", 300, 1, 2_592_000)
    object_retries: int = integer("Tries, in all, of an object store request that fails transiently.", 3, 1, 20)
    object_retry_base_s: float = number("Pause before the second try; doubles with each, with jitter.", 0.5, 0, 60)
    checkpoint_close_s: float = number(
        "Closing a store applies its pending checkpoints for at most this long.", 5, 0, 3600
    )
    idempotency_keep_s: float = number(
        "An idempotency key gives its answer again for so long at least, and for as long as the version that was"
        " made under it is kept; after that it is a new one.",
        2_592_000,
        0,
        10_000_000_000,
    )
    version_node: int | None = integer(
        "The node number in versions of entities made here; unset, one is leased. No two may share one.", None, 0, 1023
    )
    gc_interval_s: float = number(
        "A worker collects garbage when the newest run began this long ago.", 3600, 1, 31_536_000
    )
    gc_grace_s: float = number("Blocks that nothing leads to stay at least this long.", 86_400, 0, 31_536_000)
    delete_grace_s: float = number(
        "What was deleted of workflows can be had back for so long; then it is removed when garbage is collected.",
        604_800,
        0,
        10_000_000_000,
    )
    gc_upload_age_s: float = number(
        "An upload whose commit has not come for so long is abandoned.", 86_400, 0, 31_536_000
    )
    gc_object_delay_s: float = number(
        "Objects stay this long after nothing names them: as old as a backup that may be restored.",
        604_800,
        0,
        31_536_000,
    )
    gc_session_idle_s: float = number(
        "A session that has written nothing for so long is given up.", 86_400, 1, 31_536_000
    )
    gc_lease_s: float = number("A collector that was not heard of for so long may be replaced.", 300, 1, 86_400)
    gc_brake_unmarked: float = number(
        "Nothing is collected if a larger share of a tenant's blocks is garbage.", 1, 0, 1
    )
    gc_brake_drop: float = number(
        "Nothing is collected if the needed blocks of a tenant have become fewer by a larger share.", 0.5, 0, 1
    )
    gc_brake_blocks: int = integer(
        "For fewer blocks than this, the two brakes above do not apply.", 1000, 0, 1_000_000_000
    )
    worker_concurrency: int = integer("Threads in which a worker handles events.", 4, 1, 256)
    run_lease_s: float = number("A run whose worker was not heard of for so long goes on elsewhere.", 30, 0.1, 86_400)
    run_concurrency: int = integer("Runs that a worker goes on with at a time.", 4, 0, 256)
    run_poll_s: float = number("How often an idle worker looks for runs to go on with.", 1, 0.01, 3600)
    node_hosts: str = text(
        "Where nodes of workflows may send to: names, `*.names`, addresses, networks, separated by commas;"
        " `public`, every public address; `none`. Hosts that variables name are allowed besides.",
        "public",
    )
    node_variables: str = text(
        "Variables that documents may use, besides those that begin with `ANALEMMA_FLOW_`: names, separated by"
        " commas; with `@host` or `@${NAME}`, to be sent there only; or `none`.",
        "OPENAI_BASE_URL,OPENAI_API_KEY@${OPENAI_BASE_URL}",
    )
    node_read_s: float = number("A node waits so long for the next part of an answer from a host.", 120, 0.1, 86_400)
    llm_retries: int = integer("How often a model is asked again that is busy, fails or does not answer.", 3, 0, 20)
    code_isolation: Literal["namespaces", "limits", "refuse"] = choice(
        "How code of workflows is run: without network and files, or not at all; with limits only; never.",
        "namespaces",
        "limits",
        "refuse",
    )
    code_network: bool = flag("Whether code of workflows that asks for the network gets it.", False)
    code_python: str | None = text(
        "The interpreter of code of workflows, with its packages. Unset: this one, without packages.", None
    )
    fanout_page: int = integer("How many of those that join an entity are compiled in one transaction.", 100, 1, 10_000)
    fanout_limit: int = integer(
        "If more than so many follow one change, the others are compiled when there is nothing else to do; for"
        " indexes without `maxFanout`.",
        10_000,
        1,
        1_000_000_000,
    )
    fanout_keep_s: float = number(
        "Housekeeping keeps fanouts so long after they were done.", 604_800, 0, 10_000_000_000
    )
    deploy_keep_s: float = number(
        "Housekeeping keeps deploys so long after they were over.", 2_592_000, 0, 10_000_000_000
    )
    outbox_batch: int = integer("Events that a worker takes at once, at most.", 2000, 1, 10_000)
    outbox_lease_s: float = number("A worker that was not heard of for so long loses what it holds.", 30, 0.1, 86_400)
    outbox_max_attempts: int = integer(
        "An event that has failed so often is dead, and parks its aggregate.", 5, 1, 1000
    )
    outbox_backoff_base_s: float = number(
        "Longest pause before an event's second try; doubles with each, with full jitter.", 1, 0, 3600
    )
    outbox_backoff_max_s: float = number("The pause between two tries of an event is never longer.", 300, 0, 86_400)
    outbox_poll_busy_s: float = number(
        "How often a worker looks for events that it was not told of, when busy.", 0.1, 0.001, 3600
    )
    outbox_poll_idle_s: float = number("The same after a while without any.", 1, 0.001, 3600)
    outbox_keep_processed_s: float = number(
        "Housekeeping keeps events so long after their delivery.", 604_800, 0, 10_000_000_000
    )
    outbox_keep_dead_s: float = number(
        "Housekeeping keeps events so long after they were discarded.", 2_592_000, 0, 10_000_000_000
    )
    backfill_lease_s: float = number("A backfill whose process died can be taken over after this.", 30, 0.5, 3600)
    backfill_page: int = integer("Entities that a backfill takes at a time.", 100, 1, 1000)
    outbox_warn_pending: int = integer("More events than this that wait are a problem.", 1000, 0, 1_000_000_000)
    outbox_warn_oldest_s: float = number("An event that waits longer than this is a problem.", 300, 0, 31_536_000)
    outbox_warn_stale: int = integer("More leases of lost workers than this are a problem.", 20, 0, 1_000_000_000)
    outbox_warn_dead: int = integer("More dead events than this are a problem.", 0, 0, 1_000_000_000)
    ship_base: str | None = text(
        "Where relative paths in sink rules begin. Unset: beside an embedded catalog; for a server, where the"
        " worker was started.",
        None,
    )
    ship_threads: int = integer("Sinks that a worker ships to at the same time.", 16, 1, 1024)
    ship_max_attempts: int = integer(
        "A document that a sink failed to take so often, while it took others, is dead.", 20, 1, 100_000
    )
    ship_rest_s: float = number(
        "A sink that does not answer is left alone for so long; doubles with each time.", 1, 0.001, 3600
    )
    ship_rest_max_s: float = number("A sink is left alone no longer, unless it asks for it.", 60, 0.001, 86_400)
    archive_format: Literal["tar", "blocks"] = choice(
        "How workspaces are archived: as one compressed tar, or as blocks that archives share.", "tar", "blocks"
    )
    archive_level: int = integer("How hard zstd tries when it compresses a tar.", 3, 1, 19)
    archive_timeout_s: float = number("Archiving or restoring a workspace may take this long.", 1800, 0.1, 31_536_000)
    archive_lease_s: float = number(
        "The operation of a worker that was not heard of for so long is taken over.", 60, 0.1, 86_400
    )
    archive_outside_links: Literal["refuse", "keep"] = choice(
        "What to do with symbolic links that may lead out of a workspace's volume.", "refuse", "keep"
    )
    archive_limit_bytes: int = integer(
        "An archive that holds more bytes of files is not restored.", 1024 * 1024 * MIB, 0, 2**60
    )
    archive_limit_files: int = integer(
        "An archive that holds more files and directories is not restored.", 10_000_000, 0, 2**40
    )
    archive_verify_age_s: float = number(
        "Archived as blocks, files that nobody touched since they were restored do not have their blocks read again"
        " if the restore, which read them, was within this many seconds. With 0 everything is read.",
        0.0,
        0,
        366 * 86_400,
    )
    archive_gc_delay_s: float = number(
        "Archives that no workspace needs stay at least this long: so long a deleted workspace comes back.",
        604_800,
        0,
        31_536_000,
    )
    archive_gc_filter: Literal["merge", "bloom"] = choice(
        "How needed archives are told from others: exactly, or by a Bloom filter first.", "merge", "bloom"
    )
    unknown_types: Literal["refuse", "keep"] = choice(
        "What to do with a stored value whose type is not registered.", "refuse", "keep"
    )
    payload_field_bytes: int = integer(
        "A field of a payload that takes more than this becomes a pointer.", 10_240, 0, 1024 * MIB
    )
    payload_target_bytes: int = integer(
        "Fields leave a payload for as long as it is larger than this.", 10_240, 0, 1024 * MIB
    )
    payload_limit_bytes: int = integer("A payload that stays larger than this is refused.", 262_144, 0, 1024 * MIB)
    payload_event_bytes: int = integer("An event that takes more than this is refused.", 16 * MIB, 0, 1024 * MIB)
    payload_lease_s: float = number(
        "Pointers of an execution that was not released end when none was made or used for so long.",
        2_592_000,
        0,
        10_000_000_000,
    )
    payload_s3_buckets: str | None = text(
        "Buckets, separated by commas, whose `__s3_pointer__`s are read: names or `s3://bucket?...`.", None
    )

    def __init__(self, **values: Any) -> None:
        found = {name: setting.default for name, setting in SETTINGS.items()}
        reasons: list[str] = []
        hint = None
        given = {**_read_file(), **_read_variables(), **values}
        for name in sorted(given, key=[*SETTINGS, *given].index):
            if name not in SETTINGS:
                reasons.append(f"{_source(name, values)}: there is no such setting")
                hint = _similar(name)
                continue
            try:
                found[name] = SETTINGS[name].read(given[name])
            except (ValueError, OverflowError):
                # A URL may hold a password, so what was given is not repeated there.
                secret = name in ("url", "objects", "redis_url", "payload_s3_buckets")
                shown = "" if secret else f", got {repr(given[name])[:80]}"
                reasons.append(f"{_source(name, values)}: expected {SETTINGS[name].expected().replace('`', '')}{shown}")
        if reasons:
            raise Invalid("; ".join(reasons), hint=hint)
        vars(self).update(found)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ValueError(f"{name} cannot be set: settings are frozen")

    def __delattr__(self, name: str) -> NoReturn:
        raise ValueError(f"{name} cannot be deleted: settings are frozen")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Settings) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        values = ((name, redact(value) if isinstance(value, str) else value) for name, value in vars(self).items())
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values)})"


SETTINGS: dict[str, Setting] = {name: each for name, each in vars(Settings).items() if isinstance(each, Setting)}
"""What can be set, in the order of the page of reference."""


# Up to the last "@": rather too much than half of a password that was not escaped.
_PASSWORD = r"(?s)^([^:/?#]+://[^:/?#@]*):.*@"
_SECRET_PARAMETER = r"(?i)([?&;][^=&;]*(?:secret|password|token|key|credential|signature|sas)[^=&;]*=)[^&;]*"


def redact(url: str) -> str:
    """The URL without passwords and keys, fit for logs and messages.

    >>> redact("postgresql://ann:secret@db/shop?password=x")
    'postgresql://ann:***@db/shop?password=***'
    """
    return re.sub(_SECRET_PARAMETER, r"\1***", re.sub(_PASSWORD, r"\1:***@", url))


def _read_variables() -> dict[str, str]:
    found = ((name, os.environ.get(_variable(name))) for name in SETTINGS)
    return {name: value for name, value in found if value}


def _read_file() -> dict[str, Any]:
    path = _file_path()
    if path is None:
        return {}
    # Loaded where there is a file to read: most programs have none, and every import costs a short one.
    import tomllib

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


def _similar(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, SETTINGS, n=1)
    return f"did you mean {close[0]}?" if close else f"settings are {', '.join(SETTINGS)}"


def _source(name: str, arguments: dict[str, Any]) -> str:
    if name in arguments:
        return f"setting {name}"
    if name in SETTINGS and os.environ.get(_variable(name)):
        return _variable(name)
    return f"{name} in {_file_path()}"


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _integer(given: str | float) -> int:
    """A whole number, also as `8.0`; ValueError for others."""
    if isinstance(given, str):
        found = re.fullmatch(r"\s*([+-]?\d[\d_]*)(\.0*)?\s*", given, re.ASCII)
        return int(found[1] if found else "")
    if given != int(given):
        raise ValueError
    return int(given)
