-- replace_block --
-- The bytes of a block whose stored ones are damaged: an id stands for its bytes, so these are the same.
UPDATE block
SET size = :size, codec = :codec, body = :body, upload = NULL, object_offset = NULL, object_length = NULL, links = :links
WHERE tenant = :tenant AND id = :id

-- read_blocks [sqlite] --
-- `ids` is every id one after the other, 32 bytes each: a statement without limit on their number.
WITH RECURSIVE wanted (place) AS (
    SELECT 0 WHERE :count > 0
    UNION ALL
    SELECT place + 1 FROM wanted WHERE place + 1 < :count
)
SELECT block.id, size, codec, body, upload, object_offset, object_length, links
FROM wanted CROSS JOIN block ON block.tenant = :tenant AND block.id = substr(:ids, place * 32 + 1, 32)

-- read_blocks [postgres] --
-- Those of the ids that exist.
SELECT id, size, codec, body, upload, object_offset, object_length, links
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])
