-- hold_fanout --
-- How far an entity's fanout is, held by this transaction.
SELECT entity, status, version, asked, seen, step, passes, progress, affected, processed, skipped, failed, alert, priority,
       started_at, updated_at, finished_at
FROM fanout WHERE entity = :entity FOR UPDATE

-- fanouts --
-- A page of all fanouts.
SELECT tenant.name, entity.type, entity.key,
       fanout.entity, fanout.status, fanout.version, fanout.asked, fanout.seen, fanout.step, fanout.passes, fanout.progress,
       fanout.affected, fanout.processed, fanout.skipped, fanout.failed, fanout.alert, fanout.priority, fanout.started_at,
       fanout.updated_at, fanout.finished_at
FROM fanout JOIN entity ON entity.id = fanout.entity JOIN tenant ON tenant.id = fanout.tenant
WHERE fanout.entity > :after AND (:tenant::bigint IS NULL OR fanout.tenant = :tenant::bigint)
ORDER BY fanout.entity LIMIT :limit

-- fanouts_under_way --
-- A page of those that are not over.
SELECT tenant.name, entity.type, entity.key,
       fanout.entity, fanout.status, fanout.version, fanout.asked, fanout.seen, fanout.step, fanout.passes, fanout.progress,
       fanout.affected, fanout.processed, fanout.skipped, fanout.failed, fanout.alert, fanout.priority, fanout.started_at,
       fanout.updated_at, fanout.finished_at
FROM fanout JOIN entity ON entity.id = fanout.entity JOIN tenant ON tenant.id = fanout.tenant
WHERE fanout.entity > :after AND (:tenant::bigint IS NULL OR fanout.tenant = :tenant::bigint) AND fanout.finished_at IS NULL
ORDER BY fanout.entity LIMIT :limit

-- alerted_fanouts --
-- A page of those that have an alert.
SELECT tenant.name, entity.type, entity.key,
       fanout.entity, fanout.status, fanout.version, fanout.asked, fanout.seen, fanout.step, fanout.passes, fanout.progress,
       fanout.affected, fanout.processed, fanout.skipped, fanout.failed, fanout.alert, fanout.priority, fanout.started_at,
       fanout.updated_at, fanout.finished_at
FROM fanout JOIN entity ON entity.id = fanout.entity JOIN tenant ON tenant.id = fanout.tenant
WHERE fanout.entity > :after AND (:tenant::bigint IS NULL OR fanout.tenant = :tenant::bigint) AND fanout.alert IS NOT NULL
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
