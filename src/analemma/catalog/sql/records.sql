-- move_tip --
-- Compare-and-set of a head whose version stays; no row touched means that someone else was first. Holds the head until the end.
UPDATE head
SET journal_seq = :journal_seq, journal_tip = :journal_tip
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
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

-- decisions --
-- What was decided on one version, oldest first.
SELECT seq, kind, manifest, body, hash, created_at
FROM journal
WHERE tenant = :tenant AND manifest = :manifest AND kind = 'decided'
ORDER BY seq

-- decided_versions --
-- Versions of a branch with what was decided on each; newest version first, and the newest decision on it first.
SELECT manifest.id, manifest.owner, manifest.workflow, manifest.branch, manifest.version, manifest.parent, manifest.root,
       manifest.created_at, manifest.execution, manifest.segment, manifest.message,
       journal.seq, journal.kind, journal.manifest, journal.body, journal.hash, journal.created_at
FROM manifest JOIN journal
    ON journal.tenant = manifest.tenant AND journal.manifest = manifest.id AND journal.kind = 'decided'
WHERE manifest.tenant = :tenant AND manifest.owner = :owner AND manifest.workflow = :workflow
  AND manifest.branch = :branch AND manifest.version < :before_version
ORDER BY manifest.version DESC, journal.seq DESC LIMIT :limit

-- record_at --
-- One record's hash: whether a record whose answer was lost is there.
SELECT hash FROM journal
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND seq = :seq
