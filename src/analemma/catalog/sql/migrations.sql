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
