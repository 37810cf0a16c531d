-- gc --
-- Who collects, and until when that is his alone.
SELECT pass, holder, lease_until FROM gc

-- gc_take --
-- A new pass, unless somebody else is at one. A lease that ends later than any lease could is from a clock that was wrong.
UPDATE gc SET pass = pass + 1, holder = :holder, lease_until = :until
WHERE holder IS NULL OR holder = :holder OR lease_until < :now OR lease_until > :longest  -- guard: gc.lease
RETURNING pass

-- gc_hold --
-- Nobody takes the lease before this transaction ends.
SELECT pass FROM gc FOR SHARE

-- gc_renew --
-- No row touched means that another pass has begun.
UPDATE gc SET lease_until = :until WHERE pass = :number AND holder IS NOT NULL  -- guard: gc.renewed

-- gc_finish --
-- The pass is over; the next one need not wait. The number stays.
UPDATE gc SET holder = NULL, lease_until = 0 WHERE pass = :number

-- gc_close_dead_runs --
-- Passes whose collector died or lost the lease.
UPDATE gc_run SET state = 'aborted', finished_at = :now, reason = 'it did not come to its end'
WHERE state = 'running' AND pass < :number

-- gc_begin_run --
-- In the transaction that takes the lease.
INSERT INTO gc_run (pass, holder, started_at, state) VALUES (:number, :holder, :now, 'running')

-- gc_finish_run --
-- What the pass did.
UPDATE gc_run
SET state = :state, finished_at = :now, reason = :reason, expired = :expired, total = :total, referenced = :referenced,
    doomed = :doomed, cleared = :cleared, deleted = :deleted, bytes = :bytes, claimed = :claimed, objects = :objects
WHERE pass = :number

-- gc_runs --
-- Newest first.
SELECT pass, holder, started_at, finished_at, state, reason, expired, total, referenced, doomed, cleared, deleted, bytes,
       claimed, objects
FROM gc_run ORDER BY pass DESC LIMIT :limit

-- gc_grace_limit --
-- Dooms below this number are at least as old as `since`: those of a pass that was over then, or was followed by one that had begun.
SELECT coalesce(max(CASE WHEN finished_at <= :since THEN pass + 1 WHEN started_at <= :since THEN pass END), 0) FROM gc_run

-- gc_count --
-- What the newest pass that went through found in a tenant.
SELECT total, referenced FROM gc_count WHERE tenant = :tenant

-- gc_oldest_visit --
-- Of a tenant, or (-1) of all of them: when the newest pass that went through began, where that is longest ago.
SELECT coalesce(min(coalesce(gc_run.started_at, 0)), 0)
FROM tenant
LEFT JOIN gc_count ON gc_count.tenant = tenant.id
LEFT JOIN gc_run ON gc_run.pass = gc_count.pass
WHERE :tenant IN (-1, tenant.id)

-- gc_set_count --
-- What the next pass is compared with.
INSERT INTO gc_count (tenant, pass, total, referenced) VALUES (:tenant, :number, :total, :referenced)
ON CONFLICT (tenant) DO UPDATE SET pass = excluded.pass, total = excluded.total, referenced = excluded.referenced

-- manifest_roots --
-- Every version that has not expired. Heads, tags and pins name versions.
SELECT id, id FROM manifest WHERE tenant = :tenant AND id > :after ORDER BY id LIMIT :limit

-- oldest_session --
-- The number of the pass that was the newest when the oldest open session began.
SELECT min(opened_pass) FROM session WHERE tenant = :tenant

-- unexplained_emptiness --
-- For a tenant without roots that has blocks: whether these can come neither from leases that were all released, nor
-- from branches that were all removed, nor from archives that failed or were claimed, nor from whoever wrote the first ones after the roots were read, nor from a session that has yet to commit.
SELECT 1
WHERE NOT EXISTS (SELECT 1 FROM manifest WHERE tenant = :tenant)
  AND NOT EXISTS (SELECT 1 FROM session WHERE tenant = :tenant)
  AND (EXISTS (SELECT 1 FROM branch WHERE tenant = :tenant)
       OR (NOT EXISTS (SELECT 1 FROM payload WHERE tenant = :tenant)
           AND NOT EXISTS (SELECT 1 FROM archive_unit WHERE tenant = :tenant AND state <> 'kept')
           AND NOT EXISTS (SELECT 1 FROM journal WHERE tenant = :tenant AND kind = 'deleted')
           AND NOT EXISTS (SELECT 1 FROM removal WHERE tenant = :tenant)))

-- old_lease --
-- Whether there are leases that were released long ago: nobody needs to hear any more that they were.
SELECT 1 FROM payload WHERE tenant = :tenant AND released_at < :before LIMIT 1

-- forget_leases --
-- Some of them. A released lease stays released, so there is nothing to look at again.
DELETE FROM payload
WHERE tenant = :tenant AND id IN (
    SELECT id FROM payload WHERE tenant = :tenant AND released_at < :before ORDER BY id LIMIT :limit
)

-- old_end --
-- Whether there are executions that ended long ago.
SELECT 1 FROM payload_end WHERE tenant = :tenant AND ended_at < :before LIMIT 1

-- forget_ends --
-- Whoever was to be told that an execution is over has had the time to ask.
DELETE FROM payload_end WHERE tenant = :tenant AND ended_at < :before

-- scan_blocks --
-- Ids in their order, from the primary key alone: naming any other column here would read every row.
SELECT id FROM block WHERE tenant = :tenant AND id > :after ORDER BY id LIMIT :limit

-- open_session --
-- A writer that needs several transactions begins.
INSERT INTO session (tenant, id, opened_pass, touched_at) SELECT :tenant, :id, pass, :now FROM gc

-- touch_session --
-- Holds the session's row until the transaction ends; no row touched means that it was given up.
UPDATE session SET touched_at = :now WHERE tenant = :tenant AND id = :id

-- close_session --
-- With the commit at its end. No row touched means that it was given up.
DELETE FROM session WHERE tenant = :tenant AND id = :id

-- abandon_sessions --
-- Of writers that seem dead.
DELETE FROM session WHERE touched_at < :before  -- guard: session.touched

-- session_count --
-- How many writers need several transactions now.
SELECT count(*) FROM session

-- database_now --
-- Microseconds since 1970-01-01Z; SQLite counts milliseconds.
SELECT analemma_now()

-- gc_clear_dooms [sqlite] --
-- Blocks that are needed are not about to go.
DELETE FROM doom
WHERE tenant = :tenant AND id = ANY (:ids::bytea[])

-- gc_clear_dooms [postgres] --
-- Blocks that are needed are not about to go. One that a commit holds is that commit's.
WITH held AS (
    SELECT id FROM block
    WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND doomed IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE block SET doomed = NULL FROM held
WHERE block.tenant = :tenant AND block.id = held.id AND block.doomed IS NOT NULL

-- gc_doom [sqlite] --
-- Blocks that nothing in the snapshot leads to, and that are there; those that are doomed already keep their number.
INSERT INTO doom (tenant, id, pass)
SELECT block.tenant, block.id, :number
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])
ON CONFLICT (tenant, id) DO NOTHING

-- gc_doom [postgres] --
-- Blocks that nothing in the snapshot leads to; those that are doomed already keep their number.
WITH held AS (
    SELECT id FROM block
    WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND doomed IS NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE block SET doomed = :number FROM held
WHERE block.tenant = :tenant AND block.id = held.id AND block.doomed IS NULL

-- gc_delete [sqlite] --
-- Those that an earlier pass doomed, if that is still so. Answers the stored bytes of each.
DELETE FROM block
WHERE tenant = :tenant AND id IN (
    -- guard: gc.delete.sqlite
    SELECT doom.id
    FROM doom WHERE doom.tenant = :tenant AND doom.id = ANY (:ids::bytea[]) AND doom.pass < :limit
)
RETURNING coalesce(object_length, length(body))

-- gc_delete [postgres] --
-- Those that an earlier pass doomed, if that is still so. Answers the stored bytes of each. One that a commit holds is about to be
-- spared, and is left to the next pass.
WITH held AS (
    SELECT id FROM block
    -- guard: gc.delete.postgres
    WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND doomed < :limit
    ORDER BY id FOR UPDATE SKIP LOCKED
)
DELETE FROM block USING held
WHERE block.tenant = :tenant AND block.id = held.id AND block.doomed < :limit
RETURNING coalesce(block.object_length, length(block.body))

-- gc_drop_dooms --
-- Of the blocks that `gc_delete` deleted, in the same transaction: a doom must not wait for a block that is stored anew.
[sqlite] DELETE FROM doom
[sqlite] WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND pass < :limit

-- scan_doomed [sqlite] --
-- Every doomed block, in the order of ids.
SELECT id, pass FROM doom WHERE tenant = :tenant AND id > :after ORDER BY id LIMIT :limit

-- scan_doomed [postgres] --
-- Doomed blocks in the order of ids, from an index that has nothing else.
SELECT id, doomed FROM block WHERE tenant = :tenant AND doomed IS NOT NULL AND id > :after ORDER BY id LIMIT :limit

-- deletion_facts --
-- What deleting these would free, by the object that they lie in.
SELECT upload, count(*), sum(coalesce(object_length, length(body)))::bigint
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])
GROUP BY upload
