-- block_stats --
-- Number, bytes before compression, bytes as stored; of one tenant, or of all.
SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(sum(coalesce(object_length, length(body))), 0)::bigint
FROM block WHERE tenant = :tenant::integer OR :tenant::integer IS NULL

-- row_stats --
-- How many rows the other tables have; of one tenant, or of all.
SELECT (SELECT count(*) FROM manifest WHERE tenant = :tenant::integer OR :tenant::integer IS NULL),
       (SELECT count(*) FROM head WHERE tenant = :tenant::integer OR :tenant::integer IS NULL),
       (SELECT count(*) FROM upload WHERE tenant = :tenant::integer OR :tenant::integer IS NULL)
