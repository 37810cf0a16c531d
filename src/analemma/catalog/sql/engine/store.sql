-- begin_write [sqlite] --
-- Takes the write lock at once: a transaction that began by reading could only fail when it came to write.
BEGIN IMMEDIATE

-- begin_write [postgres] --
-- READ COMMITTED: the commit protocol locks rows in an order that makes it enough, and never fails to serialize.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- begin_read [sqlite] --
-- The snapshot is taken by the first statement that follows.
BEGIN

-- begin_read [postgres] --
-- One snapshot for the whole transaction.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- begin_snapshot [postgres] --
-- One snapshot for the whole transaction, which fails if it writes a row that was changed since.
BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE

-- take_time [postgres] --
-- Between its statements this transaction may wait as long as it likes: it holds nobody up.
SET LOCAL idle_in_transaction_session_timeout = 0

-- commit_durably --
-- This transaction's COMMIT returns when it is on disk, whatever the server is set to. Settings that ask for more stay.
[postgres] SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')

-- commit_transaction --
-- Returns when the server has it on disk, or as its synchronous_commit says.
COMMIT

-- rollback_transaction --
-- Everything since BEGIN.
ROLLBACK

-- open_savepoint [sqlite] --
-- One request of a shared transaction begins.
SAVEPOINT request

-- keep_savepoint [sqlite] --
-- The request is in; it becomes durable with the shared COMMIT.
RELEASE request

-- drop_savepoint [sqlite] --
-- The request failed; what it wrote goes, what the others wrote stays.
ROLLBACK TO request

-- use_wal [sqlite] --
-- Readers never wait for the writer, nor the writer for readers; a commit is one append and one fsync.
PRAGMA journal_mode = WAL

-- synchronous_full [sqlite] --
-- A commit that returned survives a power cut: the log is fsynced by every commit.
PRAGMA synchronous = FULL

-- synchronous_normal [sqlite] --
-- A commit survives kill -9, but a power cut may take back the newest ones; never corrupts.
PRAGMA synchronous = NORMAL

-- synchronous_off [sqlite] --
-- For a database in memory, which a power cut takes along anyway.
PRAGMA synchronous = OFF

-- prepare_to_write [sqlite] --
-- Settings of the connection that writes.
-- Off by default in SQLite, per connection.
PRAGMA foreign_keys = ON;
-- Pages of log between checkpoints: 16 MB. The default 4 MB writes the same hot index pages back four times as often.
PRAGMA wal_autocheckpoint = 4000;
-- After a burst the log file shrinks back to this when it is next reset: 64 MB.
PRAGMA journal_size_limit = 67108864;
-- Savepoints keep old pages in a temporary file otherwise, one system call each.
PRAGMA temp_store = MEMORY;
-- 32 MB of pages: block ids are random, so every commit touches index pages all over; the default 2 MB reads them anew each time.
PRAGMA cache_size = -32768;
-- Some systems build SQLite so that it fills every page that becomes free with zeros, and logs it: deleting then writes as much as storing
-- did. What was deleted is overwritten where a page is written anyway, and by what comes next; erasing for good is what keys are for.
PRAGMA secure_delete = FAST

-- refuse_writes [sqlite] --
-- Connections of the reading pool cannot write, whatever they are handed.
PRAGMA query_only = ON

-- truncate_log [sqlite] --
-- Copies the whole log back and empties it; waits for readers of old snapshots as long as the busy timeout allows.
PRAGMA wal_checkpoint(TRUNCATE)

-- probe [sqlite] --
-- Cheap proof that the file is a database and can be read.
PRAGMA schema_version

-- declared_columns [sqlite] --
-- Every column of every table, with the type that the schema declares.
SELECT t.name AS table_name, c.name AS column_name, upper(c.type) AS declared
FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c
WHERE t.type = 'table'

-- create_migration_table --
-- What has been applied to this store; made before the first migration, in a schema that somebody else may have made for it.
[postgres] DO $make$ BEGIN
[postgres] IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA {schema}; END IF;
CREATE TABLE IF NOT EXISTS migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at bigint NOT NULL
)
[postgres] ; END $make$

-- applied_migrations --
-- In order. On PostgreSQL with the functions of every release that is in use, which have no number, and what says which releases use each.
SELECT number, name, checksum FROM migration
[postgres] UNION ALL
[postgres] SELECT NULL, proname::text, obj_description(oid, 'pg_proc') FROM pg_proc
[postgres] WHERE proname LIKE 'analemma\_do\_%' AND pronamespace = to_regnamespace('{schema}')
ORDER BY number

-- schema_version --
-- The newest migration.
SELECT max(number) FROM migration

-- record_migration --
-- In the same transaction as the migration itself.
INSERT INTO migration (number, name, checksum, applied_at) VALUES (:number, :name, :checksum, :applied_at)

-- migration_table_exists [sqlite] --
-- A database without it is new.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migration'

-- migration_table_exists [postgres] --
-- A schema without it is new.
SELECT 1 WHERE to_regclass('{schema}.migration') IS NOT NULL

-- find_stores [postgres] --
-- The schemas in which there are stores.
SELECT nspname::text FROM pg_namespace
WHERE (
    SELECT count(*) FROM pg_class
    WHERE relnamespace = pg_namespace.oid AND relname IN ('migration', 'store', 'idempotency') AND relkind = 'r'
) = 3
ORDER BY nspname

-- lock_migrations --
-- One at a time per store, until the end of the transaction (a session lock would not survive PgBouncer).
[postgres] SELECT pg_advisory_xact_lock(7022364301936814 + {number})

-- store_id --
-- What tells this store from every other.
SELECT id FROM store

-- objects_place --
-- Where the objects of this store are.
SELECT objects FROM store

-- move_objects --
-- Compare-and-set; no row touched means that somebody else was faster, or has put something where they were.
UPDATE store SET objects = :place
WHERE coalesce(objects, '') = :before
  AND NOT (:unless_used AND (EXISTS (SELECT 1 FROM upload) OR EXISTS (SELECT 1 FROM workspace)))

-- has_objects --
-- Whether anything was ever put there, or may have been.
SELECT EXISTS (SELECT 1 FROM upload) OR EXISTS (SELECT 1 FROM workspace)

-- has_uploads --
-- Whether rows name objects.
SELECT EXISTS (SELECT 1 FROM upload) OR EXISTS (SELECT 1 FROM archive_unit)

-- tenant_count --
-- How many tenants there are.
SELECT count(*) FROM tenant

-- find_tenant --
-- The number that stands for a tenant's name in every row.
SELECT id FROM tenant WHERE name = :name

-- add_tenant --
-- Two callers may add the same name at once; both then find it.
INSERT INTO tenant (name) VALUES (:name) ON CONFLICT DO NOTHING

-- block_stats --
-- Number, bytes before compression, bytes as stored; of one tenant, or of all.
SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(sum(coalesce(object_length, length(body))), 0)::bigint
FROM block WHERE tenant = :tenant::integer OR :tenant::integer IS NULL

-- row_stats --
-- How many rows the other tables have; of one tenant, or of all.
SELECT (SELECT count(*) FROM manifest WHERE tenant = :tenant::integer OR :tenant::integer IS NULL),
       (SELECT count(*) FROM head WHERE tenant = :tenant::integer OR :tenant::integer IS NULL),
       (SELECT count(*) FROM upload WHERE tenant = :tenant::integer OR :tenant::integer IS NULL)
