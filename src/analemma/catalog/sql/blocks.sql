-- replace_block --
-- The bytes of a block whose stored ones are damaged: an id stands for its bytes, so these are the same.
UPDATE block
SET size = :size, codec = :codec, body = :body, upload = NULL, object_offset = NULL, object_length = NULL, links = :links
WHERE tenant = :tenant AND id = :id
