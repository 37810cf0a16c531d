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
