-- block_stats --
-- Number, bytes before compression, bytes as stored; of one tenant, or of all.
SELECT count(*), coalesce(sum(size), 0), coalesce(sum(coalesce(object_length, length(body))), 0)
FROM block WHERE tenant = :tenant OR :tenant IS NULL

-- row_stats --
-- How many rows the other tables have; of one tenant, or of all.
SELECT (SELECT count(*) FROM manifest WHERE tenant = :tenant OR :tenant IS NULL),
       (SELECT count(*) FROM head WHERE tenant = :tenant OR :tenant IS NULL),
       (SELECT count(*) FROM upload WHERE tenant = :tenant OR :tenant IS NULL)
