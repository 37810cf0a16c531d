"""Settings: arguments, then `ANALEMMA_*` variables, then `analemma.toml`, then defaults; the first to name one wins."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, NoReturn

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


class Setting:
    """What one setting may be."""

    def __init__(self, meaning: str, default: Any, least: float, most: float) -> None:
        self.meaning = meaning
        self.default = default
        self.least = least
        self.most = most

    def __set_name__(self, owner: type, name: str) -> None:
        """The kind of its value is that of the annotation: `str`, `int | None`, `Literal["tar", "blocks"]`."""
        self.kind, *self.choices = re.findall(r"[\w-]+", owner.__annotations__[name].removesuffix(" | None"))

    def read(self, given: Any) -> Any:
        """What is meant by a value from a program, a variable or a file; ValueError for what it cannot be."""
        if given is None and self.default is None:
            return None
        if given in self.choices:
            return given
        if self.kind == "str" and isinstance(given, str) and self.least <= len(given) <= self.most:
            return given
        if self.kind == "bool" and (found := _FLAGS.get(str(given).lower())) is not None:
            return found
        if self.kind in ("int", "float") and isinstance(given, str | int | float):
            number = float(given) if self.kind == "float" else _integer(given)
            if self.least <= number <= self.most:
                return number
        raise ValueError

    def expected(self) -> str:
        """What it may be, for people."""
        if self.choices:
            return " or ".join(f"`{choice}`" for choice in self.choices)
        if self.kind == "bool":
            return "`true` or `false`"
        if self.kind == "str":
            return f"text of {self.least} to {self.most} characters"
        return f"{'an integer' if self.kind == 'int' else 'a number'} from {self.least} to {self.most}"


def setting(meaning: str, default: Any, least: float = 1, most: float = 4096) -> Any:
    """What a class says of a setting; an instance has the value, which is why this is said to give anything. The limits
    are a number's, or those of the length of a text; what kind of value it is, the annotation says."""
    return Setting(meaning, default, least, most)


class Settings:
    """Everything that can be configured. Immutable; passwords do not show in its repr.

    >>> Settings(tenant="shop").tenant
    'shop'
    """

    url: str | None = setting("The store: a directory, `sqlite:///path` or `postgresql://...[?schema=NAME]`.", None)
    objects: str | None = setting(
        "Where large objects go. Unset: beside an embedded catalog, or into the database of a server.", None
    )
    tenant: str = setting("The tenant to work in.", "default", 1, 64)
    owner: str | None = setting("Whose workflows are meant where no owner is named.", None, 1, 512)
    sqlite_synchronous: Literal["FULL", "NORMAL"] = setting(
        "`NORMAL` is faster, and may lose the last commits when the power fails.", "FULL"
    )
    sqlite_lock_timeout_s: float = setting(
        "A write on SQLite waits this long for another process, or another program, that has the file locked; while"
        " several take turns it waits on, up to a minute.",
        5,
        0.1,
        3600,
    )
    postgres_pool_max: int = setting("Connections to PostgreSQL, at most.", 8, 1, 1000)
    postgres_prepare: bool = setting("Prepare statements on PostgreSQL; off for PgBouncer in transaction mode.", True)
    statement_timeout_s: float = setting(
        "A database statement may take this long, and a transaction on PostgreSQL may wait so long for the next:"
        " whoever is frozen keeps nobody else waiting any longer.",
        30,
        0.1,
        86_400,
    )
    connect_timeout_s: float = setting("Connecting to a database may take this long.", 10, 0.1, 600)
    auto_migrate: bool | None = setting(
        "Migrate the schema when opening. Unset: yes when embedded (SQLite), no on a server.", None
    )
    pack_threshold_bytes: int = setting(
        "A save with more new bytes than this uploads one pack.", 262_144, 0, 1024 * MIB
    )
    pack_after_s: float = setting(
        "Packing moves blocks that were stored longer ago than this.", 604_800, 0, 10_000_000_000
    )
    pack_target_bytes: int = setting("Packing fills packs up to about this size.", 16 * MIB, 65_536, 64 * MIB)
    pack_least_bytes: int = setting(
        "Packing leaves less than this where it is, to wait for more.", 1 * MIB, 0, 64 * MIB
    )
    pack_waste: float = setting("Repacking writes packs anew of which more than this share is dead.", 0.5, 0, 0.99)
    cache_bytes: int = setting("Blocks kept in memory; 0 for none.", 64 * MIB, 0, 1024 * 1024 * MIB)
    redis_url: str | None = setting("A Redis server to cache blocks in, as `redis://...`.", None)
    redis_ttl_s: int = setting("How long Redis keeps a block.", 300, 1, 2_592_000)
    object_retries: int = setting("Tries, in all, of an object store request that fails transiently.", 3, 1, 20)
    object_retry_base_s: float = setting("Pause before the second try; doubles with each, with jitter.", 0.5, 0, 60)
    checkpoint_close_s: float = setting(
        "Closing a store applies its pending checkpoints for at most this long.", 5, 0, 3600
    )
    idempotency_keep_s: float = setting(
        "An idempotency key gives its answer again for so long at least, and for as long as the version that was"
        " made under it is kept; after that it is a new one.",
        2_592_000,
        0,
        10_000_000_000,
    )
    version_node: int | None = setting(
        "The node number in versions of entities made here; unset, one is leased. No two may share one.", None, 0, 1023
    )
    gc_interval_s: float = setting(
        "A worker collects garbage when the newest run began this long ago.", 3600, 1, 31_536_000
    )
    gc_grace_s: float = setting("Blocks that nothing leads to stay at least this long.", 86_400, 0, 31_536_000)
    delete_grace_s: float = setting(
        "What was deleted of workflows can be had back for so long; then it is removed when garbage is collected.",
        604_800,
        0,
        10_000_000_000,
    )
    gc_upload_age_s: float = setting(
        "An upload whose commit has not come for so long is abandoned.", 86_400, 0, 31_536_000
    )
    gc_object_delay_s: float = setting(
        "Objects stay this long after nothing names them: as old as a backup that may be restored.",
        604_800,
        0,
        31_536_000,
    )
    gc_session_idle_s: float = setting(
        "A session that has written nothing for so long is given up.", 86_400, 1, 31_536_000
    )
    gc_lease_s: float = setting("A collector that was not heard of for so long may be replaced.", 300, 1, 86_400)
    gc_brake_unmarked: float = setting(
        "Nothing is collected if a larger share of a tenant's blocks is garbage.", 1, 0, 1
    )
    gc_brake_drop: float = setting(
        "Nothing is collected if the needed blocks of a tenant have become fewer by a larger share.", 0.5, 0, 1
    )
    gc_brake_blocks: int = setting(
        "For fewer blocks than this, the two brakes above do not apply.", 1000, 0, 1_000_000_000
    )
    worker_concurrency: int = setting("Threads in which a worker handles events.", 4, 1, 256)
    run_lease_s: float = setting("A run whose worker was not heard of for so long goes on elsewhere.", 30, 0.1, 86_400)
    run_concurrency: int = setting("Runs that a worker goes on with at a time.", 4, 0, 256)
    run_poll_s: float = setting("How often an idle worker looks for runs to go on with.", 1, 0.01, 3600)
    node_hosts: str = setting(
        "Where nodes of workflows may send to: names, `*.names`, addresses, networks, separated by commas;"
        " `public`, every public address; `none`. Hosts that variables name are allowed besides.",
        "public",
    )
    node_variables: str = setting(
        "Variables that documents may use, besides those that begin with `ANALEMMA_FLOW_`: names, separated by"
        " commas; with `@host` or `@${NAME}`, to be sent there only; or `none`.",
        "OPENAI_BASE_URL,OPENAI_API_KEY@${OPENAI_BASE_URL}",
    )
    node_read_s: float = setting("A node waits so long for the next part of an answer from a host.", 120, 0.1, 86_400)
    llm_retries: int = setting("How often a model is asked again that is busy, fails or does not answer.", 3, 0, 20)
    code_isolation: Literal["namespaces", "limits", "refuse"] = setting(
        "How code of workflows is run: without network and files, or not at all; with limits only; never.", "namespaces"
    )
    code_network: bool = setting("Whether code of workflows that asks for the network gets it.", False)
    code_python: str | None = setting(
        "The interpreter of code of workflows, with its packages. Unset: this one, without packages.", None
    )
    fanout_page: int = setting("How many of those that join an entity are compiled in one transaction.", 100, 1, 10_000)
    fanout_limit: int = setting(
        "If more than so many follow one change, the others are compiled when there is nothing else to do; for"
        " indexes without `maxFanout`.",
        10_000,
        1,
        1_000_000_000,
    )
    fanout_keep_s: float = setting(
        "Housekeeping keeps fanouts so long after they were done.", 604_800, 0, 10_000_000_000
    )
    deploy_keep_s: float = setting(
        "Housekeeping keeps deploys so long after they were over.", 2_592_000, 0, 10_000_000_000
    )
    outbox_batch: int = setting("Events that a worker takes at once, at most.", 2000, 1, 10_000)
    outbox_lease_s: float = setting("A worker that was not heard of for so long loses what it holds.", 30, 0.1, 86_400)
    outbox_max_attempts: int = setting(
        "An event that has failed so often is dead, and parks its aggregate.", 5, 1, 1000
    )
    outbox_backoff_base_s: float = setting(
        "Longest pause before an event's second try; doubles with each, with full jitter.", 1, 0, 3600
    )
    outbox_backoff_max_s: float = setting("The pause between two tries of an event is never longer.", 300, 0, 86_400)
    outbox_poll_busy_s: float = setting(
        "How often a worker looks for events that it was not told of, when busy.", 0.1, 0.001, 3600
    )
    outbox_poll_idle_s: float = setting("The same after a while without any.", 1, 0.001, 3600)
    outbox_keep_processed_s: float = setting(
        "Housekeeping keeps events so long after their delivery.", 604_800, 0, 10_000_000_000
    )
    outbox_keep_dead_s: float = setting(
        "Housekeeping keeps events so long after they were discarded.", 2_592_000, 0, 10_000_000_000
    )
    backfill_lease_s: float = setting("A backfill whose process died can be taken over after this.", 30, 0.5, 3600)
    backfill_page: int = setting("Entities that a backfill takes at a time.", 100, 1, 1000)
    outbox_warn_pending: int = setting("More events than this that wait are a problem.", 1000, 0, 1_000_000_000)
    outbox_warn_oldest_s: float = setting("An event that waits longer than this is a problem.", 300, 0, 31_536_000)
    outbox_warn_stale: int = setting("More leases of lost workers than this are a problem.", 20, 0, 1_000_000_000)
    outbox_warn_dead: int = setting("More dead events than this are a problem.", 0, 0, 1_000_000_000)
    ship_base: str | None = setting(
        "Where relative paths in sink rules begin. Unset: beside an embedded catalog; for a server, where the"
        " worker was started.",
        None,
    )
    ship_threads: int = setting("Sinks that a worker ships to at the same time.", 16, 1, 1024)
    ship_max_attempts: int = setting(
        "A document that a sink failed to take so often, while it took others, is dead.", 20, 1, 100_000
    )
    ship_rest_s: float = setting(
        "A sink that does not answer is left alone for so long; doubles with each time.", 1, 0.001, 3600
    )
    ship_rest_max_s: float = setting("A sink is left alone no longer, unless it asks for it.", 60, 0.001, 86_400)
    archive_format: Literal["tar", "blocks"] = setting(
        "How workspaces are archived: as one compressed tar, or as blocks that archives share.", "tar"
    )
    archive_level: int = setting("How hard zstd tries when it compresses a tar.", 3, 1, 19)
    archive_timeout_s: float = setting("Archiving or restoring a workspace may take this long.", 1800, 0.1, 31_536_000)
    archive_lease_s: float = setting(
        "The operation of a worker that was not heard of for so long is taken over.", 60, 0.1, 86_400
    )
    archive_outside_links: Literal["refuse", "keep"] = setting(
        "What to do with symbolic links that may lead out of a workspace's volume.", "refuse"
    )
    archive_limit_bytes: int = setting(
        "An archive that holds more bytes of files is not restored.", 1024 * 1024 * MIB, 0, 2**60
    )
    archive_limit_files: int = setting(
        "An archive that holds more files and directories is not restored.", 10_000_000, 0, 2**40
    )
    archive_verify_age_s: float = setting(
        "Archived as blocks, files that nobody touched since they were restored do not have their blocks read again"
        " if the restore, which read them, was within this many seconds. With 0 everything is read.",
        0.0,
        0,
        366 * 86_400,
    )
    archive_gc_delay_s: float = setting(
        "Archives that no workspace needs stay at least this long: so long a deleted workspace comes back.",
        604_800,
        0,
        31_536_000,
    )
    archive_gc_filter: Literal["merge", "bloom"] = setting(
        "How needed archives are told from others: exactly, or by a Bloom filter first.", "merge"
    )
    unknown_types: Literal["refuse", "keep"] = setting(
        "What to do with a stored value whose type is not registered.", "refuse"
    )
    payload_field_bytes: int = setting(
        "A field of a payload that takes more than this becomes a pointer.", 10_240, 0, 1024 * MIB
    )
    payload_target_bytes: int = setting(
        "Fields leave a payload for as long as it is larger than this.", 10_240, 0, 1024 * MIB
    )
    payload_limit_bytes: int = setting("A payload that stays larger than this is refused.", 262_144, 0, 1024 * MIB)
    payload_event_bytes: int = setting("An event that takes more than this is refused.", 16 * MIB, 0, 1024 * MIB)
    payload_lease_s: float = setting(
        "Pointers of an execution that was not released end when none was made or used for so long.",
        2_592_000,
        0,
        10_000_000_000,
    )
    payload_s3_buckets: str | None = setting(
        "Buckets, separated by commas, whose `__s3_pointer__`s are read: names or `s3://bucket?...`.", None
    )

    def __init__(self, **values: Any) -> None:
        found = {name: setting.default for name, setting in SETTINGS.items()}
        reasons: list[str] = []
        hint = None
        given = {**_read_file(), **_read_variables(), **{name: (f"setting {name}", values[name]) for name in values}}
        for name in sorted(given, key=[*SETTINGS, *given].index):
            source, value = given[name]
            if name not in SETTINGS:
                reasons.append(f"{source}: there is no such setting")
                hint = _similar(name)
                continue
            try:
                found[name] = SETTINGS[name].read(value)
            except (ValueError, OverflowError):
                # A URL may hold a password, so what was given is not repeated there.
                secret = name in ("url", "objects", "redis_url", "payload_s3_buckets")
                shown = "" if secret else f", got {repr(value)[:80]}"
                reasons.append(f"{source}: expected {SETTINGS[name].expected().replace('`', '')}{shown}")
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


def _read_variables() -> dict[str, tuple[str, Any]]:
    """By their names, where each comes from, and what it is there."""
    variables = ((name, PREFIX + name.upper()) for name in SETTINGS)
    return {name: (variable, value) for name, variable in variables if (value := os.environ.get(variable))}


def _read_file() -> dict[str, tuple[str, Any]]:
    """The same of the file, if there is one."""
    named = os.environ.get(CONFIG_VARIABLE)
    path = Path(named or FILE_NAME)
    if not named and not path.is_file():
        return {}
    # Loaded where there is a file to read: most programs have none, and every import costs a short one.
    import tomllib

    try:
        return {name: (f"{name} in {path}", value) for name, value in tomllib.loads(path.read_text("utf-8")).items()}
    except OSError as exc:
        hint = f"{CONFIG_VARIABLE} names it" if named else None
        raise Invalid(f"cannot read {path}: {exc.strerror}", hint=hint, file=str(path)) from exc
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise Invalid(f"{path} is not TOML: {exc}", file=str(path)) from exc


def _similar(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, SETTINGS, n=1)
    return f"did you mean {close[0]}?" if close else f"settings are {', '.join(SETTINGS)}"


def _integer(given: str | float) -> int:
    """A whole number, also as `8.0`; ValueError for others."""
    if isinstance(given, str):
        found = re.fullmatch(r"\s*([+-]?\d[\d_]*)(\.0*)?\s*", given, re.ASCII)
        return int(found[1] if found else "")
    if given != int(given):
        raise ValueError
    return int(given)
