-- A head may name a manifest that the same transaction adds behind it; on SQLite it always could.
SELECT 1;
