-- fanout --
-- How far an entity's fanout is.
SELECT entity, status, version, asked, seen, step, passes, progress, affected, processed, skipped, failed, alert, priority,
       started_at, updated_at, finished_at
FROM fanout WHERE entity = :entity

-- ask_fanout --
-- Counts a change. What is under way covers it before it ends; what was over begins again.
INSERT INTO fanout
    (entity, tenant, status, version, asked, seen, step, passes, progress, affected, processed, skipped, failed, alert, priority,
     started_at, updated_at, finished_at)
VALUES (:entity, :tenant, 'QUEUED', :version, 1, 0, 1, 0, '[]', 0, 0, 0, 0, NULL, 0, :now, :now, NULL)
ON CONFLICT (entity) DO UPDATE
SET version = CASE WHEN excluded.version > fanout.version THEN excluded.version ELSE fanout.version END,
    asked = fanout.asked + 1,
    updated_at = excluded.updated_at,
    status = CASE WHEN fanout.finished_at IS NULL THEN fanout.status ELSE 'QUEUED' END,
    step = CASE WHEN fanout.finished_at IS NULL THEN fanout.step ELSE fanout.step + 1 END,
    passes = CASE WHEN fanout.finished_at IS NULL THEN fanout.passes ELSE 0 END,
    progress = CASE WHEN fanout.finished_at IS NULL THEN fanout.progress ELSE '[]' END,
    affected = CASE WHEN fanout.finished_at IS NULL THEN fanout.affected ELSE 0 END,
    processed = CASE WHEN fanout.finished_at IS NULL THEN fanout.processed ELSE 0 END,
    skipped = CASE WHEN fanout.finished_at IS NULL THEN fanout.skipped ELSE 0 END,
    failed = CASE WHEN fanout.finished_at IS NULL THEN fanout.failed ELSE 0 END,
    alert = CASE WHEN fanout.finished_at IS NULL THEN fanout.alert END,
    priority = CASE WHEN fanout.finished_at IS NULL THEN fanout.priority ELSE 0 END,
    started_at = CASE WHEN fanout.finished_at IS NULL THEN fanout.started_at ELSE excluded.started_at END,
    finished_at = NULL
RETURNING entity, status, version, asked, seen, step, passes, progress, affected, processed, skipped, failed, alert,
    priority, started_at, updated_at, finished_at

-- move_fanout --
-- What became of a fanout after a page; its row is held.
UPDATE fanout
SET status = :status, seen = :seen, step = :step, passes = :passes, progress = :progress, affected = :affected,
    processed = :processed, skipped = :skipped, failed = :failed, alert = :alert, priority = :priority,
    updated_at = :updated_at, finished_at = :finished_at
WHERE entity = :entity

-- dependencies_of --
-- In which indexes of which types an entity is named, and by how many.
SELECT entity_type, index_type, count(DISTINCT entity) FROM index_entry
WHERE target = :target
GROUP BY entity_type, index_type
ORDER BY entity_type, index_type

-- any_dependant --
-- Whether anybody names an entity.
SELECT 1 FROM index_entry WHERE target = :target LIMIT 1

-- dependants --
-- A page of the entities of a type whose entries in one index name this one.
SELECT DISTINCT entry.entity, found.type, found.key, found.newest_compiled, found.serving_version
FROM index_entry AS entry JOIN entity AS found ON found.id = entry.entity
WHERE entry.target = :target AND entry.entity > :after AND entry.entity <= :until
  AND entry.entity_type = :entity_type AND entry.index_type = :index_type
ORDER BY entry.entity LIMIT :limit

-- hold_fanout --
-- How far an entity's fanout is, held by this transaction.
SELECT entity, status, version, asked, seen, step, passes, progress, affected, processed, skipped, failed, alert, priority,
       started_at, updated_at, finished_at
FROM fanout WHERE entity = :entity FOR UPDATE

-- listed_fanouts [text] --
-- Fanouts of a tenant, or of all, with the entities whose they are.
SELECT tenant.name, entity.type, entity.key,
       fanout.entity, fanout.status, fanout.version, fanout.asked, fanout.seen, fanout.step, fanout.passes, fanout.progress,
       fanout.affected, fanout.processed, fanout.skipped, fanout.failed, fanout.alert, fanout.priority, fanout.started_at,
       fanout.updated_at, fanout.finished_at
FROM fanout JOIN entity ON entity.id = fanout.entity JOIN tenant ON tenant.id = fanout.tenant
WHERE fanout.entity > :after AND (:tenant::bigint IS NULL OR fanout.tenant = :tenant::bigint)

-- fanouts --
-- A page of all fanouts.
include listed_fanouts
ORDER BY fanout.entity LIMIT :limit

-- fanouts_under_way --
-- A page of those that are not over.
include listed_fanouts
  AND fanout.finished_at IS NULL
ORDER BY fanout.entity LIMIT :limit

-- alerted_fanouts --
-- A page of those that have an alert.
include listed_fanouts
  AND fanout.alert IS NOT NULL
ORDER BY fanout.entity LIMIT :limit

-- fanout_counts --
-- How many are under way, by status, how many entities they have to visit and have visited, and since when the oldest is under way.
SELECT status, count(*), sum(affected), sum(processed + skipped + failed), min(started_at)
FROM fanout WHERE finished_at IS NULL AND (:tenant::bigint IS NULL OR tenant = :tenant::bigint)
GROUP BY status

-- fanout_alert_count --
-- How many have an alert, and how many of those are not over.
SELECT count(*), count(*) FILTER (WHERE finished_at IS NULL) FROM fanout WHERE alert IS NOT NULL AND (:tenant::bigint IS NULL OR tenant = :tenant::bigint)

-- forget_fanouts --
-- Some that were finished long ago.
DELETE FROM fanout WHERE entity IN (
    SELECT entity FROM fanout WHERE finished_at IS NOT NULL AND finished_at < :before ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED
) AND finished_at IS NOT NULL
