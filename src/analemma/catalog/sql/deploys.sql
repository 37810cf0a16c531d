-- deploy_by_id --
-- The deploy of an id, with the entity that it is of.
SELECT deploy.number, deploy.tenant, tenant.name, deploy.id, deploy.entity, entity.type, entity.key, deploy.version, deploy.created, deploy.state, deploy.compiling,
       deploy.ship, deploy.cutover, deploy.attempt, deploy.event, deploy.ship_seq, deploy.served, deploy.superseded_by, deploy.error,
       deploy.report, deploy.idempotency_key, deploy.fingerprint, deploy.created_at, deploy.updated_at, deploy.finished_at
FROM deploy JOIN entity ON entity.id = deploy.entity JOIN tenant ON tenant.id = deploy.tenant
WHERE deploy.tenant = :tenant AND deploy.id = :id

-- deploys_by_id --
-- The deploys of an id in all tenants: ids are random, so one at most, unless somebody copied rows.
SELECT deploy.number, deploy.tenant, tenant.name, deploy.id, deploy.entity, entity.type, entity.key, deploy.version, deploy.created, deploy.state, deploy.compiling,
       deploy.ship, deploy.cutover, deploy.attempt, deploy.event, deploy.ship_seq, deploy.served, deploy.superseded_by, deploy.error,
       deploy.report, deploy.idempotency_key, deploy.fingerprint, deploy.created_at, deploy.updated_at, deploy.finished_at
FROM deploy JOIN entity ON entity.id = deploy.entity JOIN tenant ON tenant.id = deploy.tenant
WHERE deploy.id = :id

-- deploy_by_key --
-- The deploy that was asked for under an idempotency key.
SELECT deploy.number, deploy.tenant, tenant.name, deploy.id, deploy.entity, entity.type, entity.key, deploy.version, deploy.created, deploy.state, deploy.compiling,
       deploy.ship, deploy.cutover, deploy.attempt, deploy.event, deploy.ship_seq, deploy.served, deploy.superseded_by, deploy.error,
       deploy.report, deploy.idempotency_key, deploy.fingerprint, deploy.created_at, deploy.updated_at, deploy.finished_at
FROM deploy JOIN entity ON entity.id = deploy.entity JOIN tenant ON tenant.id = deploy.tenant
WHERE deploy.tenant = :tenant AND deploy.idempotency_key = :idempotency_key

-- deploy_sinks --
-- The sinks that a deploy waits for, or waited for.
SELECT rule, state, ship_seq, answered_seq, reason, asked_at, answered_at FROM deploy_sink WHERE deploy = :deploy ORDER BY rule

-- deploy_steps --
-- Every transition of a deploy, in order.
SELECT before, state, attempt, reason, at FROM deploy_step WHERE deploy = :deploy ORDER BY place

-- old_deploys --
-- Deploys that were over long enough ago, oldest first. One that failed is all that says so of its version, until a newer one is compiled.
SELECT number FROM deploy
WHERE finished_at < :before
  AND (state = 'DONE' OR EXISTS (SELECT 1 FROM entity WHERE entity.id = deploy.entity AND entity.newest_compiled > deploy.version))
ORDER BY finished_at LIMIT :limit

-- slices_since --
-- The slices that were written from one version of an entity up to another, each with the last of these versions and whether one was written again.
SELECT type, max(version), max(revision) > 1 FROM slice
WHERE entity = :entity AND version >= :since AND version <= :version GROUP BY type

-- deploy_event --
-- What became of the event that has a deploy compiled: whether it is dead and stops its lane, and where it is.
SELECT outbox.status, outbox.processed_at, outbox.failure_reason, outbox.aggregatetype, outbox.aggregateid, outbox.seq, outbox.attempts
FROM outbox WHERE outbox.tenant = :tenant AND outbox.id = :id

-- drop_left_entries --
-- Entries that only the version had that is no longer served.
DELETE FROM index_entry WHERE entity = :entity AND waiting = 2

-- settle_entries --
-- The entries of the version that is served now.
UPDATE index_entry SET waiting = 0 WHERE entity = :entity AND waiting = 1
