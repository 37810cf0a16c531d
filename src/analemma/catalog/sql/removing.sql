-- drop_head --
-- Compare-and-set; no row touched means that the branch has moved on.
DELETE FROM head
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND manifest = :manifest AND version = :version AND journal_seq = :journal_seq AND journal_tip = :journal_tip
  AND NOT EXISTS (
      SELECT 1 FROM ledger
      WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :branch
  )

-- drop_branch_tags --
-- Tags on versions of a branch.
DELETE FROM tag WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- drop_branch_pins --
-- Pins of versions of a branch.
DELETE FROM pin WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- drop_branch_versions --
-- Every version of a branch, with the decisions on it. Only the rows: blocks that nothing else needs go by collection.
DELETE FROM manifest WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- drop_branch_journal --
-- A branch's journal: its end stands in the removal.
DELETE FROM journal WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- drop_branch_expired --
-- What expired on a branch.
DELETE FROM expired WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- drop_branch --
-- How a branch began.
DELETE FROM branch WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- any_head --
-- A branch that the workflow has.
SELECT branch FROM head WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow ORDER BY branch LIMIT 1

-- drop_workflow --
-- A workflow without branches is none.
DELETE FROM workflow
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND NOT EXISTS (
    SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow
)

-- drop_workflow_keys --
-- The idempotency keys of a workflow that is gone: another one of its name knows nothing of them.
DELETE FROM idempotency WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow

-- drop_workflow_policy --
-- The retention policy of a workflow that is gone.
DELETE FROM retention WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow

-- add_removal --
-- What is left of the branches.
INSERT INTO removal (tenant, owner, workflow, removed_at, body, hash)
VALUES (:tenant, :owner, :workflow, :removed_at, :body, :hash)

-- removal --
-- Whether a removal took place: its hash covers everything about it.
SELECT 1 FROM removal WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND hash = :hash

-- removals --
-- What was removed of a workflow, oldest first.
SELECT removed_at, body, hash FROM removal
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow ORDER BY removed_at

-- hold_branches [lock] --
-- No branch of a workflow begins before the transaction ends, and those that were beginning have begun.
SELECT pg_advisory_xact_lock(hashtextextended(:owner::text || '/' || :workflow::text || '/branches', :tenant::integer))

-- hold_branch [lock] --
-- Every version of a branch, held once no running commit builds on it any more. In the order in which commits lock them.
SELECT id FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
ORDER BY id
FOR UPDATE
