-- remove_branches --
-- Branches of one workflow go with all that is theirs; a row says what was there. The order of the steps is the order of the locks: no branch of the
-- workflow begins before the end, and those that were beginning have begun; then heads, lanes, versions, and what belongs to a head that is held.
(tenant bigint, owner text, workflow text, now bigint,
 gone[] (key.branch text, manifest bytea, version bigint, journal_seq bigint, journal_tip bytea),
 removals[] (removed_at_us bigint, body bytea, hash bytea))

[postgres] SELECT pg_advisory_xact_lock(hashtextextended(:owner || '/' || :workflow || '/branches', :tenant::integer));

each gone:
DELETE FROM head
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch
  AND manifest = :gone.manifest AND version = :gone.version AND journal_seq = :gone.journal_seq AND journal_tip = :gone.journal_tip
  AND NOT EXISTS (
      SELECT 1 FROM ledger
      WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :gone.key.branch
  )
=> 1 or head_moved;

include add_events;

-- A commit that builds on one of the versions is waited for: then what it takes over is its own. In the order in which commits lock them.
[postgres] each gone:
[postgres] SELECT id FROM manifest
[postgres] WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch ORDER BY id FOR UPDATE;

-- A workflow without branches is none: another one of its name knows nothing of its keys and its policy.
each removals:
DELETE FROM idempotency
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow);

each removals:
DELETE FROM retention
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow);

each gone:
DELETE FROM pin WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch;

each gone:
DELETE FROM tag WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch;

-- With the decisions on them. Only the rows: blocks that nothing else needs go by collection.
each gone:
DELETE FROM manifest WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch;

-- A branch's journal ends in the removal.
each gone:
DELETE FROM journal WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch;

each gone:
DELETE FROM expired WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch;

each gone:
DELETE FROM branch WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch;

each removals:
DELETE FROM workflow
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow);

each removals:
INSERT INTO removal (tenant, owner, workflow, removed_at, body, hash)
VALUES (:tenant, :owner, :workflow, :removals.removed_at_us, :removals.body, :removals.hash);

-- any_head --
-- A branch that the workflow has.
SELECT branch FROM head WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow ORDER BY branch LIMIT 1

-- removal --
-- Whether a removal took place: its hash covers everything about it.
SELECT 1 FROM removal WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND hash = :hash

-- removals --
-- What was removed of a workflow, oldest first.
SELECT removed_at, body, hash FROM removal
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow ORDER BY removed_at
