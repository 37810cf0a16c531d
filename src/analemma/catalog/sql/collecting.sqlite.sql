-- database_now --
-- Microseconds since 1970-01-01Z; SQLite counts milliseconds.
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000

-- gc_hold_lease --
-- There is one writer, so what it says stays so until the transaction ends.
SELECT pass FROM gc

-- gc_clear_dooms --
-- Blocks that are needed are not about to go. `ids` is every id one after the other, 32 bytes each.
-- The recursion stands inside, because Python counts rows only for statements that begin with their verb.
UPDATE block SET doomed = NULL
WHERE tenant = :tenant AND id IN (
    WITH RECURSIVE wanted (place) AS (
        SELECT 0 WHERE :count > 0
        UNION ALL
        SELECT place + 1 FROM wanted WHERE place + 1 < :count
    )
    SELECT substr(:ids, place * 32 + 1, 32) FROM wanted
) AND doomed IS NOT NULL

-- gc_doom --
-- Blocks that nothing in the snapshot leads to; those that are doomed already keep their number.
UPDATE block SET doomed = :pass
WHERE tenant = :tenant AND id IN (
    WITH RECURSIVE wanted (place) AS (
        SELECT 0 WHERE :count > 0
        UNION ALL
        SELECT place + 1 FROM wanted WHERE place + 1 < :count
    )
    SELECT substr(:ids, place * 32 + 1, 32) FROM wanted
) AND doomed IS NULL

-- gc_delete --
-- Those that an earlier pass doomed, if that is still so. Answers the stored bytes of each.
DELETE FROM block
WHERE tenant = :tenant AND id IN (
    WITH RECURSIVE wanted (place) AS (
        SELECT 0 WHERE :count > 0
        UNION ALL
        SELECT place + 1 FROM wanted WHERE place + 1 < :count
    )
    SELECT substr(:ids, place * 32 + 1, 32) FROM wanted
) AND doomed < :limit
RETURNING coalesce(object_length, length(body))

-- deletion_facts --
-- What deleting these would free, by the object that they lie in.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT upload, count(*), sum(coalesce(object_length, length(body)))
FROM wanted CROSS JOIN block ON block.tenant = :tenant AND block.id = substr(:ids, place * 32 + 1, 32)
GROUP BY upload
