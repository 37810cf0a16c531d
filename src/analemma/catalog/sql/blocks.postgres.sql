-- read_blocks --
-- Those of the ids that exist.
SELECT id, size, codec, body, upload, object_offset, object_length, links
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])
