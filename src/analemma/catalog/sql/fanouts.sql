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
