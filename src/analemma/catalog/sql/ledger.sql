-- head_and_pending --
-- Where one branch stands, and whether acknowledged deltas wait to be applied to it: one look for both, since every save looks.
SELECT head.manifest, head.version, head.journal_seq, head.journal_tip, EXISTS (
    SELECT 1 FROM ledger
    WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :branch
)
FROM (SELECT 1 AS one) AS always LEFT JOIN head
    ON head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow AND head.branch = :branch

-- newest_pending --
-- The last entry that waits for a branch at this moment.
SELECT max(seq) FROM ledger WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- newest_pending_of_all --
-- The last entry that waits for any branch.
SELECT max(seq) FROM ledger WHERE tenant = :tenant

-- pending_count --
-- How many entries wait.
SELECT count(*) FROM ledger WHERE tenant = :tenant

-- pending_branches --
-- Branches for which entries wait that were made before a time and have a place up to one.
SELECT DISTINCT owner, workflow, branch FROM ledger
WHERE tenant = :tenant AND created_at < :before AND seq <= :through LIMIT :limit

-- pending_request --
-- What was asked under a caller's key and is not applied yet.
SELECT fingerprint FROM ledger
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND idempotency_key = :key
ORDER BY seq LIMIT 1

-- ticket_state --
-- An entry is in one of the two tables: it changes from one to the other in one transaction.
SELECT owner, workflow, branch, created_at, NULL AS receipt, NULL AS failure
FROM ledger WHERE seq = :seq AND tenant = :tenant AND secret = :secret
UNION ALL
SELECT owner, workflow, branch, settled_at, receipt, failure
FROM ticket WHERE seq = :seq AND tenant = :tenant AND secret = :secret

-- kept_delta --
-- The delta of an entry that waits, or that failed.
SELECT codec, size, digest, body FROM ledger WHERE seq = :seq AND tenant = :tenant AND secret = :secret
UNION ALL
SELECT codec, size, digest, body FROM ticket
WHERE seq = :seq AND tenant = :tenant AND secret = :secret AND failure IS NOT NULL

-- forget_tickets --
-- What became of entries long ago, with the deltas of those that failed.
DELETE FROM ticket WHERE tenant = :tenant AND settled_at < :before
