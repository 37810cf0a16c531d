-- database_now --
-- Microseconds since 1970-01-01Z.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- gc_hold_lease --
-- Nobody takes the lease before this transaction ends.
SELECT pass FROM gc FOR SHARE

-- gc_clear_dooms --
-- Blocks that are needed are not about to go. One that a commit holds is that commit's.
WITH held AS (
    SELECT id FROM block
    WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND doomed IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE block SET doomed = NULL FROM held
WHERE block.tenant = :tenant AND block.id = held.id AND block.doomed IS NOT NULL

-- gc_doom --
-- Blocks that nothing in the snapshot leads to; those that are doomed already keep their number.
WITH held AS (
    SELECT id FROM block
    WHERE tenant = :tenant AND id = ANY (:ids::bytea[]) AND doomed IS NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE block SET doomed = :pass FROM held
WHERE block.tenant = :tenant AND block.id = held.id AND block.doomed IS NULL

-- gc_delete --
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

-- scan_doomed --
-- Doomed blocks in the order of ids, from an index that has nothing else.
SELECT id, doomed FROM block WHERE tenant = :tenant AND doomed IS NOT NULL AND id > :after ORDER BY id LIMIT :limit

-- deletion_facts --
-- What deleting these would free, by the object that they lie in.
SELECT upload, count(*), sum(coalesce(object_length, length(body)))::bigint
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])
GROUP BY upload
