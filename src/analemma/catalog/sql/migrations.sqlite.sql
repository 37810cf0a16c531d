-- migration_table_exists --
-- A database without it is new.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migration'

-- lock_migrations --
-- Nothing to do: a write transaction has SQLite to itself.
SELECT 1
