-- create_migration_table --
-- What has been applied to this database; made before the first migration.
CREATE TABLE IF NOT EXISTS migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at bigint NOT NULL
)

-- applied_migrations --
-- In order.
SELECT number, name, checksum FROM migration ORDER BY number

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
