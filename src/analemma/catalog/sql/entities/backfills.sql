-- add_backfill --
-- One that is planned.
INSERT INTO backfill (tenant, id, kind, scope, options, plan, state, created_at)
VALUES (:tenant, :id, :kind, :scope, :options, :plan, 'PLANNED', :now)
RETURNING number

-- add_backfill_shard --
-- A range of entities that it goes through.
INSERT INTO backfill_shard (backfill, shard, level, type, first, last, total, cursor)
VALUES (:backfill, :shard, :level, :type, :first, :last, :total, :cursor)

-- backfill --
-- One by its id, with what its shards did.
SELECT backfill.number, tenant.name, backfill.tenant, backfill.id, kind, scope, options, plan, state, reason, fence, holder,
       lease_until, created_at, started_at, finished_at, sums.total, sums.done, sums.changed, sums.slices,
       sums.tombstones, sums.requested, sums.failed
FROM backfill JOIN tenant ON tenant.id = backfill.tenant
    JOIN (
        SELECT backfill, CAST(sum(total) AS bigint) AS total, CAST(sum(done) AS bigint) AS done, CAST(sum(changed) AS bigint) AS changed,
               CAST(sum(slices) AS bigint) AS slices, CAST(sum(tombstones) AS bigint) AS tombstones,
               CAST(sum(requested) AS bigint) AS requested, CAST(sum(failed) AS bigint) AS failed
        FROM backfill_shard
        WHERE backfill = (SELECT number FROM backfill WHERE id = :id)
        GROUP BY backfill
    ) AS sums ON sums.backfill = backfill.number
WHERE backfill.id = :id

-- backfills --
-- The ids of those of a tenant, or of all, newest first.
SELECT id FROM backfill
WHERE tenant = coalesce(:tenant, tenant)
ORDER BY number DESC LIMIT :limit

-- backfill_errors --
-- Those that failed, as far as they were written down.
SELECT entity, kind, reason FROM backfill_error WHERE backfill = :backfill ORDER BY shard, step, place LIMIT :limit

-- take_backfill --
-- Compare-and-set: no row means that it is over, paused (unless that is allowed), or in somebody's hands.
UPDATE backfill
SET state = 'RUNNING', reason = NULL, fence = fence + 1, holder = :holder, lease_until = :until,
    started_at = coalesce(started_at, :now), finished_at = NULL
WHERE number = :number AND (state IN ('PLANNED', 'RUNNING', 'FAILED') OR (state = 'PAUSED' AND :paused = 1))
  AND (lease_until IS NULL OR lease_until <= :now)  -- guard: backfill.lease
RETURNING fence

-- renew_backfill --
-- Compare-and-set: no row touched means that another has it. One that was paused keeps its lease until its holder gives it back.
UPDATE backfill SET lease_until = :until WHERE number = :number AND fence = :fence AND holder IS NOT NULL  -- guard: backfill.renewed

-- backfill_standing --
-- Whether whoever has this fence may go on.
SELECT state, fence FROM backfill WHERE number = :number

-- leave_backfill --
-- Give it back, in a state that fits what somebody else may have said meanwhile.
UPDATE backfill
SET holder = NULL, lease_until = NULL, state = CASE WHEN state = 'RUNNING' THEN :state ELSE state END,  -- guard: backfill.cancelled
    reason = CASE WHEN state = 'RUNNING' THEN :reason ELSE reason END,
    finished_at = CASE WHEN state = 'RUNNING' AND :over = 1 THEN :now ELSE finished_at END
WHERE number = :number AND fence = :fence  -- guard: backfill.left

-- pause_backfill --
-- Whoever runs it notices with the next entity.
UPDATE backfill SET state = 'PAUSED', reason = :reason WHERE number = :number AND state IN ('PLANNED', 'RUNNING')

-- cancel_backfill --
-- For ever. Whoever runs it notices with the next entity.
UPDATE backfill SET state = 'CANCELLED', reason = :reason, finished_at = :now
WHERE number = :number AND state IN ('PLANNED', 'RUNNING', 'PAUSED', 'FAILED')

-- backfill_shards --
-- Those that are not finished, in their order.
SELECT shard, level, type, first, last, total, cursor, step, failed FROM backfill_shard
WHERE backfill = :backfill AND NOT finished
ORDER BY level, shard

-- backfill_shard --
-- Where one shard stands, and whether whoever has this fence may go on.
SELECT shard.shard, shard.level, shard.type, shard.first, shard.last, shard.total, shard.cursor, shard.step, shard.failed, shard.finished,
       backfill.state, backfill.fence
FROM backfill_shard AS shard JOIN backfill ON backfill.number = shard.backfill
WHERE shard.backfill = :backfill AND shard.shard = :shard

-- advance_backfill --
-- Everything up to a cursor is done. Compare-and-set on the step, by whoever has the fence, while it runs; no row touched means that
-- nothing that was to go with it may stay.
UPDATE backfill_shard
SET cursor = :cursor, step = step + 1, finished = :finished, done = done + :done, changed = changed + :changed,
    slices = slices + :slices, tombstones = tombstones + :tombstones, requested = requested + :requested, failed = failed + :failed
WHERE backfill = :backfill AND shard = :shard AND step = :step  -- guard: backfill.step
  -- guard: backfill.running
  AND EXISTS (SELECT 1 FROM backfill AS job WHERE job.number = :backfill AND job.fence = :fence AND job.state = 'RUNNING')  -- guard: backfill.fence

-- add_backfill_error --
-- One that failed.
INSERT INTO backfill_error (backfill, shard, step, place, entity, kind, reason)
VALUES (:backfill, :shard, :step, :place, :entity, :kind, :reason)

-- raw_versions --
-- All versions of an entity, oldest first.
SELECT version FROM raw WHERE entity = :entity ORDER BY version

-- backfill_counts --
-- What a type has within a scope: entities, those never compiled, those whose newest version is not compiled, those compiled by other rules
-- than `fingerprint`, the bytes of their newest versions, and how many have been compiled. `ids` NULL is all.
[sqlite] SELECT count(*), coalesce(sum(found.newest_compiled IS NULL), 0), coalesce(sum(found.newest_compiled < found.newest_raw), 0),
[sqlite]        coalesce(sum(found.fingerprint <> :fingerprint), 0), coalesce(sum(found.size), 0), coalesce(sum(found.newest_compiled IS NOT NULL), 0)
[postgres] SELECT count(*), count(*) FILTER (WHERE found.newest_compiled IS NULL), count(*) FILTER (WHERE found.newest_compiled < found.newest_raw),
[postgres]        count(*) FILTER (WHERE found.fingerprint <> :fingerprint::text), coalesce(sum(found.size), 0)::bigint, count(*) FILTER (WHERE found.newest_compiled IS NOT NULL)
FROM (
    SELECT entity.newest_raw, entity.newest_compiled, raw.size, (
        SELECT compile.fingerprint FROM compile
        WHERE compile.entity = entity.id AND compile.version = entity.newest_compiled ORDER BY compile.revision DESC LIMIT 1
    ) AS fingerprint
    FROM entity JOIN raw ON raw.entity = entity.id AND raw.version = entity.newest_raw
    WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key >= :low AND entity.key < :high
      AND (:ids::text[] IS NULL OR entity.key = ANY (:ids::text[]))
) AS found

-- backfill_ranges --
-- The entities of a scope in ranges of about the same count: first and last number, and how many. With `stale`, only those that were not
-- compiled by the rules of this fingerprint from their newest version; with `compiled`, only those that were compiled at all.
SELECT min(placed.id), max(placed.id), count(*)
FROM (
    SELECT entity.id, ntile(:ranges::integer) OVER (ORDER BY entity.id) AS range
    FROM entity
    WHERE entity.tenant = :tenant AND entity.type = :type AND entity.key >= :low AND entity.key < :high AND entity.newest_raw IS NOT NULL
      AND (:ids::text[] IS NULL OR entity.key = ANY (:ids::text[]))
      AND (NOT :compiled::boolean OR entity.newest_compiled IS NOT NULL)
      AND (NOT :stale::boolean OR entity.newest_compiled IS NULL OR entity.newest_compiled <> entity.newest_raw OR :fingerprint::text <> (
          SELECT compile.fingerprint FROM compile
          WHERE compile.entity = entity.id AND compile.version = entity.newest_compiled ORDER BY compile.revision DESC LIMIT 1
      ) OR (entity.serving_version <> entity.newest_compiled AND :fingerprint::text <> (
          SELECT compile.fingerprint FROM compile
          WHERE compile.entity = entity.id AND compile.version = entity.serving_version ORDER BY compile.revision DESC LIMIT 1
      )))
) AS placed
GROUP BY placed.range ORDER BY placed.range

-- backfill_page --
-- A page of the entities of a scope, by number, from one number to another. The conditions are those of `backfill_ranges`.
SELECT entity.id, entity.key, entity.newest_raw, entity.newest_compiled, entity.serving_version, entity.ship_seq, entity.compile_seq
FROM entity
[sqlite] WHERE entity.tenant = :tenant AND entity.id >= :first AND entity.id <= :last AND +entity.type = :type
[sqlite]   AND +entity.key >= :low AND +entity.key < :high AND entity.newest_raw IS NOT NULL
[postgres] WHERE entity.tenant = :tenant AND entity.id >= :first AND entity.id <= :last AND entity.type = :type
[postgres]   AND entity.key >= :low AND entity.key < :high AND entity.newest_raw IS NOT NULL
  AND (:ids::text[] IS NULL OR entity.key = ANY (:ids::text[]))
  AND (NOT :compiled::boolean OR entity.newest_compiled IS NOT NULL)
  AND (NOT :stale::boolean OR entity.newest_compiled IS NULL OR entity.newest_compiled <> entity.newest_raw OR :fingerprint::text <> (
      SELECT compile.fingerprint FROM compile
      WHERE compile.entity = entity.id AND compile.version = entity.newest_compiled ORDER BY compile.revision DESC LIMIT 1
  ) OR (entity.serving_version <> entity.newest_compiled AND :fingerprint::text <> (
      SELECT compile.fingerprint FROM compile
      WHERE compile.entity = entity.id AND compile.version = entity.serving_version ORDER BY compile.revision DESC LIMIT 1
  )))
ORDER BY entity.id LIMIT :limit

-- stored_entries --
-- All index entries of entities, with what must agree with the entity's own row.
SELECT entry.entity, entry.index_type, entry.value, target.type, target.key, entry.tenant, entry.entity_type, entry.waiting
FROM index_entry AS entry LEFT JOIN entity AS target ON target.id = entry.target
WHERE entry.entity = ANY (:entities::bigint[])
