-- hold_branches --
-- No branch of a workflow begins before the transaction ends, and those that were beginning have begun.
SELECT pg_advisory_xact_lock(hashtextextended(:owner::text || '/' || :workflow::text || '/branches', :tenant::integer))

-- hold_branch --
-- Every version of a branch, held once no running commit builds on it any more. In the order in which commits lock them.
SELECT id FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
ORDER BY id
FOR UPDATE
