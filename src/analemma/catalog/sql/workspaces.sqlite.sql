-- present_blocks --
-- Those of the ids that are stored, and where; `ids` is every id one after the other, 32 bytes each.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT block.id, block.upload, block.object_offset + block.object_length
FROM wanted CROSS JOIN block ON block.tenant = :tenant AND block.id = substr(:ids, place * 32 + 1, 32)
