-- How long idempotency keys are kept: by when the database remembered them. Those that are there are as old as this migration.
ALTER TABLE idempotency ADD COLUMN created_at integer NOT NULL DEFAULT 0;
UPDATE idempotency SET created_at = (SELECT us FROM moment);
CREATE INDEX idempotency_age ON idempotency (tenant, created_at, owner, workflow, key);

-- When a lease was made or last used, by the database's clock: an execution that nobody released ends by it.
ALTER TABLE payload ADD COLUMN renewed_at integer NOT NULL DEFAULT 0;
UPDATE payload SET renewed_at = (SELECT us FROM moment);
