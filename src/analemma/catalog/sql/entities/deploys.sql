-- deploy_rows [text] --
-- Deploys as values, each with the entity that it is of.
SELECT deploy.number, deploy.tenant, tenant.name, deploy.id, deploy.entity, entity.type, entity.key, deploy.version, deploy.created, deploy.state, deploy.compiling,
       deploy.ship, deploy.cutover, deploy.attempt, deploy.event, deploy.ship_seq, deploy.served, deploy.superseded_by, deploy.error,
       deploy.report, deploy.idempotency_key, deploy.fingerprint, deploy.created_at, deploy.updated_at, deploy.finished_at
FROM deploy JOIN entity ON entity.id = deploy.entity JOIN tenant ON tenant.id = deploy.tenant

-- deploy_by_id --
-- The deploy of an id.
include deploy_rows
WHERE deploy.tenant = :tenant AND deploy.id = :id

-- deploys_by_id --
-- The deploys of an id in all tenants: ids are random, so one at most, unless somebody copied rows.
include deploy_rows
WHERE deploy.id = :id

-- deploy_by_key --
-- The deploy that was asked for under an idempotency key.
include deploy_rows
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
include deploy_rows
WHERE deploy.number < :before AND (:tenant::integer IS NULL OR deploy.tenant = :tenant)
  AND (:state::text IS NULL OR deploy.state = :state) AND (:entity::bigint IS NULL OR deploy.entity = :entity)
  AND (:type::text IS NULL OR entity.type = :type)
ORDER BY deploy.number DESC LIMIT :limit

-- deploying_entities --
-- Those of these entities that have deploys which wait for sinks.
SELECT DISTINCT entity FROM deploy
WHERE finished_at IS NULL AND state = 'SINKING' AND entity = ANY (:entities::bigint[]) ORDER BY entity

-- hold_served --
-- Nobody else moves what is served until the transaction ends.
-- guard: deploy.served.lock.postgres
SELECT id, newest_compiled, serving_version, ship_seq FROM entity WHERE id = ANY (:entities::bigint[]) ORDER BY id FOR NO KEY UPDATE

-- waiting_deploys --
-- The deploys of entities that wait for sinks, those of older versions first. Held: of two sinks that answer at the same moment, the second sees the first.
include deploy_rows
WHERE deploy.entity = ANY (:entities::bigint[]) AND deploy.finished_at IS NULL AND deploy.state = 'SINKING'
ORDER BY deploy.entity, deploy.version, deploy.number
FOR UPDATE OF deploy

-- move_deploy --
-- Compare-and-set; no row touched means that somebody else moved it first.
UPDATE deploy
SET state = :state, attempt = :attempt, event = :event, ship_seq = :ship_seq, served = :served, superseded_by = :superseded_by,
    error = :error, report = :report, updated_at = :now, finished_at = :finished_at
-- guard: deploy.attempt
WHERE number = :number AND state = :before AND attempt = :before_attempt  -- guard: deploy.state

-- add_deploy_steps --
-- The states that a deploy has gone through, behind those that there are, and the sinks that it asks, perhaps once more. With `forget`, what an
-- earlier attempt asked and was not answered is not waited for any more.
(number bigint, now bigint, attempt bigint, forget bigint, ship_seq bigint, steps[] (before text, state text, reason text), asked[] text)

often steps;

each steps:
INSERT INTO deploy_step (deploy, place, before, state, attempt, reason, at)
SELECT :number, coalesce(max(place), 0) + 1, :steps.before, :steps.state, :attempt, :steps.reason, :now FROM deploy_step WHERE deploy = :number;

DELETE FROM deploy_sink WHERE deploy = :number AND state <> 'ANSWERED' AND :forget = 1;

each asked:
INSERT INTO deploy_sink (deploy, rule, state, ship_seq, answered_seq, reason, asked_at, answered_at)
VALUES (:number, :asked, 'WAITING', :ship_seq, NULL, NULL, :now, NULL)
ON CONFLICT (deploy, rule) DO UPDATE
SET state = 'WAITING', ship_seq = excluded.ship_seq, answered_seq = NULL, reason = NULL, asked_at = excluded.asked_at, answered_at = NULL;

-- answer_deploy_sinks --
-- Sinks have what deploys wait for, or something newer; or will not take it. Who answers twice is heard in order.
(now bigint, answers[] (entity bigint, rule text, ship_seq bigint, is_refused bigint, reason text))

each answers:
UPDATE deploy_sink
SET state = CASE WHEN :answers.is_refused = 1 THEN 'FAILED' ELSE 'ANSWERED' END,
    answered_seq = CASE WHEN :answers.is_refused = 1 THEN answered_seq ELSE :answers.ship_seq END,
    reason = :answers.reason, answered_at = :now
WHERE rule = :answers.rule AND ship_seq <= :answers.ship_seq AND state = 'WAITING'  -- guard: deploy.answered
  AND deploy IN (SELECT number FROM deploy WHERE entity = :answers.entity AND finished_at IS NULL);

-- sinks_of_deploys --
-- The sinks that deploys wait for, or waited for.
SELECT deploy, rule, state, ship_seq, answered_seq, reason, asked_at, answered_at FROM deploy_sink
WHERE deploy = ANY (:deploys::bigint[]) ORDER BY deploy, rule

-- finish_deploys --
-- Deploys that are held and whose sinks have all answered, if nothing else of them changes.
(now bigint, numbers[] bigint)

each numbers:
INSERT INTO deploy_step (deploy, place, before, state, attempt, reason, at)
SELECT number, 1 + (SELECT coalesce(max(place), 0) FROM deploy_step WHERE deploy = :numbers), 'SINKING', 'DONE', attempt, NULL, :now
FROM deploy WHERE number = :numbers AND state = 'SINKING';

each numbers:
UPDATE deploy SET state = 'DONE', updated_at = :now, finished_at = :now WHERE number = :numbers AND state = 'SINKING';

-- lanes_left --
-- Of these lanes, which have events that are not delivered, whether one of them stopped it, and what is first.
SELECT lane.aggregateid, lane.next_seq - 1 > lane.done_seq, lane.parked, outbox.id, outbox.failure_reason,
       coalesce(outbox.attempts, 0), CASE WHEN lane.retry_at IS NOT NULL AND NOT lane.parked THEN lane.due_at END
FROM lane LEFT JOIN outbox ON outbox.tenant = lane.tenant AND outbox.aggregatetype = lane.aggregatetype
    AND outbox.aggregateid = lane.aggregateid AND outbox.seq = lane.done_seq + 1
WHERE lane.tenant = :tenant AND lane.aggregatetype = :aggregatetype AND lane.aggregateid = ANY (:ids::text[])

-- slices_that_differ --
-- Those of these slices that are something else at one version than at another, if they were anything there.
SELECT kind.type FROM rows(:types) AS kind (type text)
WHERE (
    SELECT hash FROM slice WHERE entity = :entity AND slice.type = kind.type AND version <= :before::bigint
    ORDER BY version DESC, revision DESC LIMIT 1
[sqlite] ) IS NOT (
[postgres] ) IS DISTINCT FROM (
    SELECT hash FROM slice WHERE entity = :entity AND slice.type = kind.type AND version <= :version
    ORDER BY version DESC, revision DESC LIMIT 1
)
[sqlite] ORDER BY kind.type
[postgres] ORDER BY kind.type COLLATE "C"

-- drop_deploys --
-- Those that are over, and were over before: a retry that came between keeps one.
DELETE FROM deploy WHERE number = ANY (:numbers::bigint[]) AND finished_at < :before RETURNING number  -- guard: deploy.kept

-- drop_deploy_sinks --
-- Those of deploys that housekeeping deletes.
DELETE FROM deploy_sink WHERE deploy = ANY (:numbers::bigint[])

-- drop_deploy_steps --
-- Those of deploys that housekeeping deletes.
DELETE FROM deploy_step WHERE deploy = ANY (:numbers::bigint[])

-- unfinished_deploys --
-- The newest deploy of each of these entities, unless it is done.
include deploy_rows
WHERE deploy.number IN (SELECT max(newest.number) FROM deploy AS newest WHERE newest.entity = ANY (:entities::bigint[]) GROUP BY newest.entity)
  AND deploy.state <> 'DONE'
