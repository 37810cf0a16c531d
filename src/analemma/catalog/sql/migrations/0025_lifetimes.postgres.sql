-- How long idempotency keys are kept: by when the database remembered them. Those that are there are as old as this migration.
ALTER TABLE idempotency ADD COLUMN created_at bigint NOT NULL DEFAULT analemma_now();
ALTER TABLE idempotency ALTER COLUMN created_at DROP DEFAULT;
CREATE INDEX idempotency_age ON idempotency (tenant, created_at, owner, workflow, key);
