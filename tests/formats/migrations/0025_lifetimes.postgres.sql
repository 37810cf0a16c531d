-- How long idempotency keys are kept: by when the database remembered them. Those that are there are as old as this migration.
ALTER TABLE idempotency ADD COLUMN created_at bigint NOT NULL DEFAULT analemma_now();
ALTER TABLE idempotency ALTER COLUMN created_at DROP DEFAULT;
CREATE INDEX idempotency_age ON idempotency (tenant, created_at, owner, workflow, key);

-- When a lease was made or last used, by the database's clock: an execution that nobody released ends by it.
ALTER TABLE payload ADD COLUMN renewed_at bigint NOT NULL DEFAULT analemma_now();
ALTER TABLE payload ALTER COLUMN renewed_at DROP DEFAULT;
