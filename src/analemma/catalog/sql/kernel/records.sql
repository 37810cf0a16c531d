-- append_record --
-- One more link of a branch's hash chain, whose version stays. The head is held first and its tip compared, as by a commit: what was read of the
-- branch's versions and marks after reading the head is still true.
(tenant bigint, expected.key.owner text, expected.key.workflow text, expected.key.branch text, expected.manifest bytea, expected.version bigint,
 expected.journal_seq bigint, expected.journal_tip bytea, record.seq bigint, record.kind text, record.manifest bytea, record.body bytea,
 record.hash bytea, record.created_at_us bigint)

UPDATE head
SET journal_seq = :record.seq, journal_tip = :record.hash
WHERE tenant = :tenant AND owner = :expected.key.owner AND workflow = :expected.key.workflow AND branch = :expected.key.branch
  -- guard: tip
  AND manifest = :expected.manifest AND version = :expected.version
  AND journal_seq = :expected.journal_seq AND journal_tip = :expected.journal_tip
=> 1 or head_moved;

-- Under the branch's head lock this stays true: expiry takes that lock too.
SELECT 1 WHERE :record.manifest IS NULL OR EXISTS (  -- guard: mark.version_exists
    SELECT 1 FROM manifest
    WHERE tenant = :tenant AND id = :record.manifest
      AND owner = :expected.key.owner AND workflow = :expected.key.workflow AND branch = :expected.key.branch
)
=> 1 or version_gone;

INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
VALUES (:tenant, :expected.key.owner, :expected.key.workflow, :expected.key.branch, :record.seq, :record.kind, :record.manifest, :record.body,
        :record.hash, :record.created_at_us);

-- drop_ref --
-- A tag or a pin that is still on the version it was on goes, with a record.
(ref_kind text, name text, left[] bytea)

include append_record;

each left:
DELETE FROM ref
WHERE tenant = :tenant AND owner = :expected.key.owner AND workflow = :expected.key.workflow AND kind = :ref_kind AND name = :name
  AND manifest = :left  -- guard: ref.left
=> 1 or not_as_it_was;

-- put_ref --
-- A version gets a tag, which leaves the version that it was on, if it was on any; or a pin, which may be there already: then it gets another text.
(text text)

include drop_ref;

INSERT INTO ref (tenant, owner, workflow, kind, name, branch, manifest, text, created_at)
VALUES (:tenant, :expected.key.owner, :expected.key.workflow, :ref_kind, :name, :expected.key.branch, :record.manifest, :text,
        :record.created_at_us)
ON CONFLICT (tenant, owner, workflow, kind, name) DO UPDATE SET text = excluded.text, created_at = excluded.created_at
WHERE ref.kind = 'pin'  -- guard: ref.taken
=> 1 or not_as_it_was;

-- put_decision --
-- The newest decision on a version replaces the one before it; its record stays.
(version bigint, decision text)

include append_record;

INSERT INTO decision (tenant, manifest, owner, workflow, branch, version, decision)
VALUES (:tenant, :record.manifest, :expected.key.owner, :expected.key.workflow, :expected.key.branch, :version, :decision)
ON CONFLICT (tenant, manifest) DO UPDATE SET decision = excluded.decision;

-- expire_versions --
-- Versions of the branch go, all of them or none: none that the head, a tag or a pin names by now, or that has become another version of the same
-- number, as the branch was removed and begun again. Only the rows: blocks that nothing else needs go by collection.
(expired[] by id (version bigint, id bytea))

include append_record;

-- Each is held once no running commit builds on it any more, in the order in which commits lock them.
each expired:
SELECT 1 FROM manifest
WHERE tenant = :tenant AND id = :expired.id AND owner = :expected.key.owner AND workflow = :expected.key.workflow
  AND branch = :expected.key.branch AND version = :expired.version AND version <> :expected.version  -- guard: expiry.held
FOR UPDATE  -- guard: expiry.lock.postgres
=> 1 or not_as_it_was;

-- What a tag, a pin, or a run that made them and is not over keeps; of a run that failed, the version that it stands on.
each expired:
SELECT 1 FROM manifest
WHERE tenant = :tenant AND id = :expired.id
  AND (EXISTS (SELECT 1 FROM ref WHERE ref.tenant = manifest.tenant AND ref.manifest = manifest.id)  -- guard: expiry.ref
       OR EXISTS (SELECT 1 FROM run WHERE run.tenant = manifest.tenant AND run.execution = manifest.execution  -- guard: expiry.run
                  AND (run.ended_at IS NULL OR (run.status = 'FAILED' AND run.head = manifest.id))))
=> 0 or not_as_it_was;  -- guard: expiry.protected

-- So that whoever asks for one of them hears that it has expired.
each expired:
INSERT INTO expired (tenant, manifest, owner, workflow, branch, version, expired_at)
VALUES (:tenant, :expired.id, :expected.key.owner, :expected.key.workflow, :expected.key.branch, :expired.version, :record.created_at_us);

each expired:
DELETE FROM manifest WHERE tenant = :tenant AND id = :expired.id;

-- versions_after --
-- Versions of a branch, oldest first.
SELECT id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message
FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version > :after_version
ORDER BY version LIMIT :limit

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

-- remove_branches --
-- Branches of one workflow go with all that is theirs; a row says what was there. The order of the steps is the order of the locks: no branch of the
-- workflow begins before the end, and those that were beginning have begun; then heads, lanes, versions, and what belongs to a head that is held.
(tenant bigint, owner text, workflow text, now bigint,
 gone[] (key.branch text, manifest bytea, version bigint, journal_seq bigint, journal_tip bytea),
 removals[] (removed_at_us bigint, body bytea, hash bytea))

[postgres] SELECT pg_advisory_xact_lock(hashtextextended(:owner || '/' || :workflow || '/branches', :tenant::integer + {number}));

each gone:
DELETE FROM head
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch
  AND manifest = :gone.manifest AND version = :gone.version AND journal_seq = :gone.journal_seq AND journal_tip = :gone.journal_tip
  AND NOT EXISTS (
      SELECT 1 FROM pending
      WHERE pending.tenant = :tenant AND pending.owner = :owner AND pending.workflow = :workflow AND pending.branch = :gone.key.branch
        AND pending.settled_at IS NULL
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
DELETE FROM ref WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.key.branch;

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
