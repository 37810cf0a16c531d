-- create_migration_table --
-- What has been applied to this database; made before the first migration.
CREATE TABLE IF NOT EXISTS migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at bigint NOT NULL
)

-- applied_migrations --
-- In order. On PostgreSQL with the functions of every release that is in use, which have no number, and what says which releases use each.
SELECT number, name, checksum FROM migration
[postgres] UNION ALL
[postgres] SELECT NULL, proname::text, obj_description(oid, 'pg_proc') FROM pg_proc
[postgres] WHERE proname LIKE 'analemma\_do\_%' AND pg_function_is_visible(oid)
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
SELECT 1 WHERE to_regclass('migration') IS NOT NULL

-- lock_migrations [lock] --
-- One at a time per database, until the end of the transaction (a session lock would not survive PgBouncer).
SELECT pg_advisory_xact_lock(7022364301936814)
