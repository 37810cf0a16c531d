-- move_tip --
-- Compare-and-set of a head whose version stays; no row touched means that someone else was first. Holds the head until the end.
UPDATE head
SET journal_seq = :journal_seq, journal_tip = :journal_tip
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  -- guard: tip
  AND manifest = :manifest AND version = :version
  AND journal_seq = :expected_journal_seq AND journal_tip = :expected_journal_tip

-- add_record --
-- One more link of the branch's hash chain.
INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
VALUES (:tenant, :owner, :workflow, :branch, :seq, :kind, :manifest, :body, :hash, :created_at)

-- version_exists --
-- Under the branch's head lock this stays true: expiry takes that lock too.
SELECT 1 FROM manifest
WHERE tenant = :tenant AND id = :id AND owner = :owner AND workflow = :workflow AND branch = :branch

-- versions_after --
-- Versions of a branch, oldest first.
SELECT id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version > :after_version
ORDER BY version LIMIT :limit

-- put_decision --
-- The newest decision on a version replaces the one before it.
INSERT INTO decision (tenant, manifest, owner, workflow, branch, version, decision)
VALUES (:tenant, :manifest, :owner, :workflow, :branch, :version, :decision)
ON CONFLICT (tenant, manifest) DO UPDATE SET decision = excluded.decision

-- decisions --
-- What was decided on one version, oldest first: only what the journal of its own branch says. The columns of the branch are no bare columns
-- here, or SQLite would read that whole journal by them instead of looking the version up.
SELECT seq, kind, manifest, body, hash, created_at
FROM journal
WHERE tenant = :tenant AND manifest = :manifest AND kind = 'decided'
  AND owner || '' = :owner AND workflow || '' = :workflow AND branch || '' = :branch
ORDER BY seq

-- record_at --
-- One record's hash: whether a record whose answer was lost is there.
SELECT hash FROM journal
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND seq = :seq
