-- replace_block --
-- The bytes of a block whose stored ones are damaged: an id stands for its bytes, so these are the same.
UPDATE block
SET size = :size, codec = :codec, body = :body, upload = NULL, object_offset = NULL, object_length = NULL, links = :links
WHERE tenant = :tenant AND id = :id

-- read_blocks --
-- Those of the ids that exist.
SELECT id, size, codec, body, upload, object_offset, object_length, links
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])
