-- move_head --
-- Compare-and-set; no row touched means that someone else moved the head first, or (with unless_pending) that deltas wait to move it.
UPDATE head
SET manifest = :manifest, version = :version, journal_seq = :journal_seq, journal_tip = :journal_tip
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  -- guard: head.sqlite
  AND manifest = :expected_manifest AND version = :expected_version
  AND journal_seq = :expected_journal_seq AND journal_tip = :expected_journal_tip  -- guard: head.journal.sqlite
  AND NOT (:unless_pending AND EXISTS (  -- guard: pending.sqlite
      SELECT 1 FROM ledger
      WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :branch
  ))

-- create_head --
-- No row touched means that the branch exists already.
INSERT INTO head (tenant, owner, workflow, branch, manifest, version, journal_seq, journal_tip)
VALUES (:tenant, :owner, :workflow, :branch, :manifest, :version, :journal_seq, :journal_tip)
ON CONFLICT DO NOTHING

-- base_exists --
-- A manifest whose blocks are linked without being emitted must still be there.
SELECT 1 FROM manifest WHERE tenant = :tenant AND id = :id

-- add_manifest --
-- The row of the new version.
INSERT INTO manifest (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message)
VALUES (:tenant, :id, :owner, :workflow, :branch, :version, :parent, :root, :created_at, :execution, :segment, :message)

-- add_journal --
-- The new links of the branch's hash chain.
INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
VALUES (:tenant, :owner, :workflow, :branch, :seq, :kind, :manifest, :body, :hash, :created_at)
