-- add_deploy --
-- A new deploy; no row back means that its idempotency key is taken.
INSERT INTO deploy
    (tenant, id, entity, version, created, state, compiling, ship, cutover, event, idempotency_key, fingerprint, created_at, updated_at)
VALUES
    (:tenant, :id, :entity, :version, :created, :state, :compiling, :ship, :cutover, :event, :idempotency_key, :fingerprint, :now, :now)
ON CONFLICT DO NOTHING
RETURNING number

-- list_deploys --
-- A page of deploys, newest first, of those that match.
SELECT deploy.number, deploy.tenant, tenant.name, deploy.id, deploy.entity, entity.type, entity.key, deploy.version, deploy.created, deploy.state, deploy.compiling,
       deploy.ship, deploy.cutover, deploy.attempt, deploy.event, deploy.ship_seq, deploy.served, deploy.superseded_by, deploy.error,
       deploy.report, deploy.idempotency_key, deploy.fingerprint, deploy.created_at, deploy.updated_at, deploy.finished_at
FROM deploy JOIN entity ON entity.id = deploy.entity JOIN tenant ON tenant.id = deploy.tenant
WHERE deploy.number < :before AND (:tenant IS NULL OR deploy.tenant = :tenant)
  AND (:state IS NULL OR deploy.state = :state) AND (:entity IS NULL OR deploy.entity = :entity)
  AND (:type IS NULL OR entity.type = :type)
ORDER BY deploy.number DESC LIMIT :limit

-- keep_waiting_entries --
-- The entries that only the other version has now. `entries` is a JSON list of [index, value, target or 0] of this one.
UPDATE index_entry SET waiting = :other
WHERE entity = :entity AND waiting = 0 AND (index_type, value, coalesce(target, 0)) NOT IN (
    SELECT json_extract(entry.value, '$[0]'), json_extract(entry.value, '$[1]'), json_extract(entry.value, '$[2]') FROM json_each(:entries) AS entry
)

-- share_waiting_entries --
-- The entries that both versions have now.
UPDATE index_entry SET waiting = 0
WHERE entity = :entity AND waiting = :other AND (index_type, value, coalesce(target, 0)) IN (
    SELECT json_extract(entry.value, '$[0]'), json_extract(entry.value, '$[1]'), json_extract(entry.value, '$[2]') FROM json_each(:entries) AS entry
)

-- drop_waiting_entries --
-- Entries that only this version had, and has no longer.
DELETE FROM index_entry
WHERE entity = :entity AND waiting = :own AND (index_type, value, coalesce(target, 0)) NOT IN (
    SELECT json_extract(entry.value, '$[0]'), json_extract(entry.value, '$[1]'), json_extract(entry.value, '$[2]') FROM json_each(:entries) AS entry
)

-- add_waiting_entries --
-- Entries that this version has and the other one has not.
INSERT INTO index_entry (tenant, entity_type, index_type, value, entity, target, waiting)
SELECT :tenant, :entity_type, json_extract(entry.value, '$[0]'), json_extract(entry.value, '$[1]'), :entity, nullif(json_extract(entry.value, '$[2]'), 0), :own
FROM json_each(:entries) AS entry
WHERE true
ON CONFLICT DO NOTHING

-- deploying_entities --
-- Those of these entities that have deploys which wait for sinks. `entities` is a JSON list.
SELECT DISTINCT entity FROM deploy
WHERE finished_at IS NULL AND state = 'SINKING' AND entity IN (SELECT value FROM json_each(:entities)) ORDER BY entity

-- hold_served --
-- There is one writer, so nobody else moves what is served until the transaction ends. `entities` is a JSON list.
SELECT id, newest_compiled, serving_version, ship_seq FROM entity WHERE id IN (SELECT value FROM json_each(:entities)) ORDER BY id

-- waiting_deploys --
-- The deploys of entities that wait for sinks, those of older versions first. `entities` is a JSON list.
SELECT deploy.number, deploy.tenant, tenant.name, deploy.id, deploy.entity, entity.type, entity.key, deploy.version, deploy.created, deploy.state, deploy.compiling,
       deploy.ship, deploy.cutover, deploy.attempt, deploy.event, deploy.ship_seq, deploy.served, deploy.superseded_by, deploy.error,
       deploy.report, deploy.idempotency_key, deploy.fingerprint, deploy.created_at, deploy.updated_at, deploy.finished_at
FROM deploy JOIN entity ON entity.id = deploy.entity JOIN tenant ON tenant.id = deploy.tenant
WHERE deploy.entity IN (SELECT value FROM json_each(:entities)) AND deploy.finished_at IS NULL AND deploy.state = 'SINKING'
ORDER BY deploy.entity, deploy.version, deploy.number

-- move_deploy --
-- Compare-and-set; no row touched means that somebody else moved it first.
UPDATE deploy
SET state = :state, attempt = :attempt, event = :event, ship_seq = :ship_seq, served = :served, superseded_by = :superseded_by,
    error = :error, report = :report, updated_at = :now, finished_at = :finished_at
-- guard: deploy.attempt.sqlite
WHERE number = :number AND state = :before AND attempt = :before_attempt  -- guard: deploy.state.sqlite

-- add_deploy_step --
-- One transition, behind those that there are.
INSERT INTO deploy_step (deploy, place, before, state, attempt, reason, at)
SELECT :deploy, coalesce(max(place), 0) + 1, :before, :state, :attempt, :reason, :at FROM deploy_step WHERE deploy = :deploy

-- forget_deploy_sinks --
-- What an earlier attempt asked and was not answered is not waited for any more.
DELETE FROM deploy_sink WHERE deploy = :deploy AND state <> 'ANSWERED'

-- add_deploy_sink --
-- A sink that was asked, perhaps once more.
INSERT INTO deploy_sink (deploy, rule, state, ship_seq, answered_seq, reason, asked_at, answered_at)
VALUES (:deploy, :rule, 'WAITING', :ship_seq, NULL, NULL, :asked_at, NULL)
ON CONFLICT (deploy, rule) DO UPDATE
SET state = 'WAITING', ship_seq = excluded.ship_seq, answered_seq = NULL, reason = NULL, asked_at = excluded.asked_at, answered_at = NULL

-- answer_deploy_sinks --
-- A sink has what these deploys wait for, or something newer.
UPDATE deploy_sink SET state = 'ANSWERED', answered_seq = :seq, reason = :reason, answered_at = :now
WHERE rule = :rule AND ship_seq <= :seq AND state = 'WAITING'
  AND deploy IN (SELECT number FROM deploy WHERE entity = :entity AND finished_at IS NULL)

-- fail_deploy_sinks --
-- A sink will not take what these deploys wait for.
UPDATE deploy_sink SET state = 'FAILED', reason = :reason, answered_at = :now
WHERE rule = :rule AND ship_seq <= :seq AND state = 'WAITING'
  AND deploy IN (SELECT number FROM deploy WHERE entity = :entity AND finished_at IS NULL)

-- sinks_of_deploys --
-- The sinks that deploys wait for, or waited for. `deploys` is a JSON list of numbers.
SELECT deploy, rule, state, ship_seq, answered_seq, reason, asked_at, answered_at FROM deploy_sink
WHERE deploy IN (SELECT value FROM json_each(:deploys)) ORDER BY deploy, rule

-- lanes_left --
-- Of these lanes, which have events that are not delivered, whether one of them stopped it, and what is first. `ids` is a JSON list.
SELECT lane.aggregateid, lane.next_seq - 1 > lane.done_seq, lane.parked, outbox.id, outbox.failure_reason,
       coalesce(outbox.attempts, 0), CASE WHEN lane.retry_at IS NOT NULL AND NOT lane.parked THEN lane.due_at END
FROM lane LEFT JOIN outbox ON outbox.tenant = lane.tenant AND outbox.aggregatetype = lane.aggregatetype
    AND outbox.aggregateid = lane.aggregateid AND outbox.seq = lane.done_seq + 1
WHERE lane.tenant = :tenant AND lane.aggregatetype = :aggregatetype AND lane.aggregateid IN (SELECT value FROM json_each(:ids))

-- slices_that_differ --
-- Those of these slices that are something else at one version than at another, if they were anything there. `types` is a JSON list.
SELECT kind.value FROM json_each(:types) AS kind
WHERE (
    SELECT hash FROM slice WHERE entity = :entity AND type = kind.value AND version <= :before ORDER BY version DESC, revision DESC LIMIT 1
) IS NOT (
    SELECT hash FROM slice WHERE entity = :entity AND type = kind.value AND version <= :version ORDER BY version DESC, revision DESC LIMIT 1
)
ORDER BY kind.value

-- move_served --
-- Another version is served: whoever read slices to join them has to read again.
UPDATE entity SET serving_version = :version, compile_seq = compile_seq + 1, ship_seq = ship_seq + 1, served_rules = (
    SELECT compile.fingerprint FROM compile
        JOIN raw ON raw.entity = compile.entity AND raw.version = compile.version AND raw.root IS NOT NULL
    WHERE compile.entity = :entity AND compile.version = :version ORDER BY compile.revision DESC LIMIT 1
)
WHERE id = :entity

-- drop_deploys --
-- Those that are over, and were over before: a retry that came between keeps one. `numbers` is a JSON list.
DELETE FROM deploy WHERE number IN (SELECT value FROM json_each(:numbers)) AND finished_at < :before RETURNING number

-- drop_deploy_sinks --
-- Those of deploys that housekeeping deletes. `numbers` is a JSON list.
DELETE FROM deploy_sink WHERE deploy IN (SELECT value FROM json_each(:numbers))

-- drop_deploy_steps --
-- Those of deploys that housekeeping deletes. `numbers` is a JSON list.
DELETE FROM deploy_step WHERE deploy IN (SELECT value FROM json_each(:numbers))

-- unfinished_deploys --
-- The newest deploy of each of these entities, unless it is done. `entities` is a JSON list.
SELECT deploy.number, deploy.tenant, tenant.name, deploy.id, deploy.entity, entity.type, entity.key, deploy.version, deploy.created, deploy.state, deploy.compiling,
       deploy.ship, deploy.cutover, deploy.attempt, deploy.event, deploy.ship_seq, deploy.served, deploy.superseded_by, deploy.error,
       deploy.report, deploy.idempotency_key, deploy.fingerprint, deploy.created_at, deploy.updated_at, deploy.finished_at
FROM deploy JOIN entity ON entity.id = deploy.entity JOIN tenant ON tenant.id = deploy.tenant
WHERE deploy.number IN (SELECT max(newest.number) FROM deploy AS newest WHERE newest.entity IN (SELECT value FROM json_each(:entities)) GROUP BY newest.entity)
  AND deploy.state <> 'DONE'
