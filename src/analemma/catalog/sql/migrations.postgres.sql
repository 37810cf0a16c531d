-- migration_table_exists --
-- A schema without it is new.
SELECT 1 WHERE to_regclass('migration') IS NOT NULL

-- lock_migrations --
-- One at a time per database, until the end of the transaction (a session lock would not survive PgBouncer).
SELECT pg_advisory_xact_lock(7022364301936814)
