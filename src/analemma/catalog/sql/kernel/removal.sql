-- move_branches --
-- Branches of one workflow go to another owner with all that is theirs. A deletion gives them to one whom nobody can name, bringing them back is the
-- same the other way. Their journals stay where they are, and say so. The order of the steps is the order of the locks.
(tenant bigint, owner text, workflow text, source text, target text, now bigint, whole bigint, forced bigint, failure text,
 gone[] (head.key.branch text, head.manifest bytea, head.version bigint, head.journal_seq bigint, head.journal_tip bytea, record.seq bigint,
         record.hash bytea),
 deletions[] text)

include hold_branches;

each gone:
SELECT 1 FROM head
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch
  AND manifest = :gone.head.manifest AND version = :gone.head.version
  AND journal_seq = :gone.head.journal_seq AND journal_tip = :gone.head.journal_tip  -- guard: delete.head
FOR UPDATE
=> 1 or head_moved;

each gone:
SELECT 1 FROM head WHERE tenant = :tenant AND owner = :target AND workflow = :workflow AND branch = :gone.head.key.branch
=> 0 or name_used;  -- guard: undelete.head

each gone:
SELECT 1 FROM journal
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :gone.head.key.branch AND seq >= :gone.record.seq
=> 0 or name_used;  -- guard: undelete.journal

each gone:
UPDATE head SET owner = :target, journal_seq = :gone.record.seq, journal_tip = :gone.record.hash
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch;

include leave_branches;

-- A commit that builds on one of the versions is waited for: then what it takes over is its own. In the order in which commits lock them.
[postgres] each gone:
[postgres] SELECT id FROM manifest
[postgres] WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch ORDER BY id FOR UPDATE;

each gone:
SELECT 1 FROM ref JOIN ref AS other
    ON other.tenant = ref.tenant AND other.owner = :target AND other.workflow = ref.workflow AND other.kind = ref.kind AND other.name = ref.name
WHERE ref.tenant = :tenant AND ref.owner = :source AND ref.workflow = :workflow AND ref.branch = :gone.head.key.branch
=> 0 or tag_used;  -- guard: undelete.tag

each gone:
SELECT 1 FROM thread_checkpoint
WHERE tenant = :tenant AND owner = :target AND thread = :workflow AND branch = :gone.head.key.branch
=> 0 or thread_used;

each gone:
UPDATE manifest SET owner = :target
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch;

-- Keys of versions that expired count, too. With the last branch go all that are left; one that is used again meanwhile is another request's.
each gone:
UPDATE idempotency SET owner = :target
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow
  AND (manifest IN (
      SELECT id FROM manifest
      WHERE tenant = :tenant AND owner = :target AND workflow = :workflow AND branch = :gone.head.key.branch
      UNION ALL
      SELECT manifest FROM expired
      WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch
  ) OR NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow))
  AND NOT EXISTS (
      SELECT 1 FROM idempotency AS other
      WHERE other.tenant = :tenant AND other.owner = :target AND other.workflow = :workflow AND other.key = idempotency.key
  );

include drop_keys;

each gone:
UPDATE decision SET owner = :target
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch;

each gone:
UPDATE ref SET owner = :target WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch;

include add_records;

each gone:
UPDATE expired SET owner = :target
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch;

each gone:
UPDATE branch SET owner = :target
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch;

-- The name, the status and the policy of a workflow are its own, not its branches': each that goes takes a copy along, so that whichever is had back
-- first has them. What is there by then stays as it is.
INSERT INTO workflow (tenant, owner, workflow, name, status, created_at, updated_at)
SELECT tenant, :target, workflow, name, status, created_at, updated_at
FROM workflow WHERE tenant = :tenant AND owner = :source AND workflow = :workflow
ON CONFLICT DO NOTHING;

INSERT INTO retention (tenant, owner, workflow, keep_last, keep_newer_than_s, keep_hourly, keep_daily, keep_weekly)
SELECT tenant, :target, workflow, keep_last, keep_newer_than_s, keep_hourly, keep_daily, keep_weekly
FROM retention WHERE tenant = :tenant AND owner = :source AND workflow = :workflow
ON CONFLICT DO NOTHING;

include forget_workflow;

-- A thread also has namespaces in which it has no version of its own yet: they go with the last branch.
each gone:
UPDATE thread_checkpoint SET owner = :target
WHERE tenant = :tenant AND owner = :source AND thread = :workflow AND (branch = :gone.head.key.branch
  OR NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow));

each gone:
UPDATE thread_write SET owner = :target
WHERE tenant = :tenant AND owner = :source AND thread = :workflow AND (branch = :gone.head.key.branch
  OR NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow));

each gone:
UPDATE workflow SET status = 'FAILED', updated_at = :now
WHERE tenant = :tenant AND owner IN (:source, :target) AND workflow = :workflow AND EXISTS (
    SELECT 1 FROM run
    WHERE run.tenant = :tenant AND run.workflow = :workflow AND run.owner = :source AND run.branch = :gone.head.key.branch AND run.ended_at IS NULL
);

include cancel_runs;

-- Behind every other, also where the clock counts in milliseconds.
each deletions:
INSERT INTO deletion (tenant, aside, owner, workflow, deleted_at)
SELECT :tenant, :deletions, :owner, :workflow, max(moments.at)
FROM (SELECT analemma_now() AS at UNION ALL SELECT deleted_at + 1 FROM deletion WHERE tenant = :tenant) AS moments;

include forget_deletion;

-- remove_branches --
-- Branches of one workflow go for good with all that is theirs: deleted ones whose grace is over, or some that are not to have any. With `keeping`, versions
-- stay that others were forked from, and those before them. The journal ends in the tombstone.
(tenant bigint, owner text, workflow text, source text, whole bigint, forced bigint, failure text, keeping bigint,
 gone[] (head.key.branch text, head.manifest bytea, head.version bigint, head.journal_seq bigint, head.journal_tip bytea),
 left[] text)

include hold_branches;

each gone:
DELETE FROM head
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch
  AND manifest = :gone.head.manifest AND version = :gone.head.version
  AND journal_seq = :gone.head.journal_seq AND journal_tip = :gone.head.journal_tip  -- guard: removal.head
=> 1 or head_moved;

include leave_branches;

-- As above: whoever forks from one of the versions that go is waited for, and then seen.
[postgres] each left:
[postgres] SELECT id FROM manifest
[postgres] WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :left ORDER BY id FOR UPDATE;

each left:
DELETE FROM ref WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :left;

-- With the decisions on them. Only the rows: blocks that nothing else needs go by collection.
each left:
DELETE FROM manifest
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :left
  AND (:keeping = 0 OR version > coalesce((  -- guard: removal.forked
      SELECT max(version) FROM forked_version AS fork
      WHERE fork.tenant = :tenant AND fork.owner = :source AND fork.workflow = :workflow AND fork.branch = :left
  ), 0));

include drop_keys;

include add_records;

-- Up to the tombstone behind which nothing is had back. Not while versions stay of any life of the name: what was merged to make them is told here.
each left:
DELETE FROM journal
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :left
  AND seq < (
      SELECT max(tombstone.seq) FROM journal AS tombstone
      WHERE tombstone.tenant = :tenant AND tombstone.owner = :owner AND tombstone.workflow = :workflow AND tombstone.branch = :left
        AND tombstone.kind = 'deleted' AND NOT EXISTS (  -- guard: removal.restored
            SELECT 1 FROM journal AS later
            WHERE later.tenant = :tenant AND later.owner = :owner AND later.workflow = :workflow AND later.branch = :left
              AND later.kind = 'restored' AND later.seq > tombstone.seq
        )
  )
  AND NOT EXISTS (  -- guard: removal.journal
      SELECT 1 FROM deletion
      JOIN manifest ON manifest.tenant = deletion.tenant AND manifest.owner = deletion.aside AND manifest.workflow = deletion.workflow
      WHERE deletion.tenant = :tenant AND deletion.owner = :owner AND deletion.workflow = :workflow AND manifest.branch = :left
  );

each left:
DELETE FROM expired
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :left
  AND (:keeping = 0 OR version > coalesce((
      SELECT max(version) FROM forked_version AS fork
      WHERE fork.tenant = :tenant AND fork.owner = :source AND fork.workflow = :workflow AND fork.branch = :left
  ), 0));

each left:
DELETE FROM branch
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :left
  AND NOT EXISTS (
      SELECT 1 FROM forked_version AS fork
      WHERE :keeping <> 0 AND fork.tenant = :tenant AND fork.owner = :source AND fork.workflow = :workflow AND fork.branch = :left
  );

include forget_workflow;

-- Those of a thread that is removed without grace go with it, as it says itself.
DELETE FROM thread_checkpoint
WHERE :keeping <> 0 AND tenant = :tenant AND owner = :source AND thread = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow);

DELETE FROM thread_write
WHERE :keeping <> 0 AND tenant = :tenant AND owner = :source AND thread = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow);

include cancel_runs;
include forget_deletion;

-- hold_branches [part] --
-- No branch of the workflow begins before the end, and those that were beginning have begun.
(tenant bigint, owner text, workflow text)

[postgres] SELECT pg_advisory_xact_lock(hashtextextended(:owner || '/' || :workflow || '/branches', :tenant::integer + {number}));

-- leave_branches [part] --
-- What happens around branches whose heads are held: what waits for them will never be a version, and sources are told.
(tenant bigint)

each gone:
SELECT 1 FROM pending
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch AND settled_at IS NULL
  AND :failure = ''  -- guard: removal.pending
=> 0 or head_moved;

each gone:
UPDATE pending SET settled_at = :now, failure = :failure
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow AND branch = :gone.head.key.branch AND settled_at IS NULL;

-- Also what waits for branches that have not begun: it would begin the workflow anew.
UPDATE pending SET settled_at = :now, failure = :failure
WHERE :whole <> 0 AND tenant = :tenant AND owner = :source AND workflow = :workflow AND settled_at IS NULL;

include add_events;

-- A branch that began since they were looked at.
SELECT 1 WHERE :whole <> 0 AND EXISTS (  -- guard: delete.whole
    SELECT 1 FROM head WHERE tenant = :tenant AND owner = :source AND workflow = :workflow
)
=> 0 or branch_began;

each gone:
SELECT 1 WHERE :forced = 0 AND EXISTS (  -- guard: delete.run
    SELECT 1 FROM run
    WHERE tenant = :tenant AND workflow = :workflow AND owner = :source AND branch = :gone.head.key.branch AND ended_at IS NULL
)
=> 0 or run_goes_on;

-- drop_keys [part] --
-- A workflow without branches is none: another one of its name knows nothing of its keys.
()

DELETE FROM idempotency
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow);

-- forget_workflow [part] --
-- What is left of a workflow that has no branch.
()

DELETE FROM retention
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow);

DELETE FROM workflow
WHERE tenant = :tenant AND owner = :source AND workflow = :workflow
  AND NOT EXISTS (SELECT 1 FROM head WHERE head.tenant = :tenant AND head.owner = :source AND head.workflow = :workflow);

-- cancel_runs [part] --
-- The runs of branches that are deleted with force: whoever works on one finds that it is no longer his, and whoever waits for one hears of its end.
()

each gone:
UPDATE run SET due_at = analemma_now()
WHERE holder IS NULL AND status = 'RUNNING' AND number IN (
    SELECT child.parent FROM run AS child
    WHERE child.tenant = :tenant AND child.workflow = :workflow AND child.owner = :source AND child.branch = :gone.head.key.branch
      AND child.ended_at IS NULL AND child.parent IS NOT NULL
);

each gone:
UPDATE run
SET status = 'CANCELLED', fence = fence + 1, holder = NULL, due_at = NULL, waiting = NULL, error = NULL,
    updated_at = analemma_now(), ended_at = analemma_now()
WHERE tenant = :tenant AND workflow = :workflow AND owner = :source AND branch = :gone.head.key.branch AND ended_at IS NULL;

-- forget_deletion [part] --
-- A deletion of which nothing is left to bring back, or to remove.
()

DELETE FROM deletion
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND aside = :source
  AND NOT EXISTS (SELECT 1 FROM branch WHERE branch.tenant = :tenant AND branch.owner = :source AND branch.workflow = :workflow);

-- heads_of_workflow --
-- Where the branches of a workflow stand. Not their versions' rows: this is asked when those may be lost.
SELECT branch, manifest, version, journal_seq, journal_tip
FROM head WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow ORDER BY branch

-- deleted_branches --
-- What is deleted, of a tenant, an owner or a workflow, the newest deletion first; of each branch, whether its name was used again since, so that its
-- journal went on. Of one whose grace is over only what others were forked from is left, and no head.
SELECT deletion.aside, deletion.owner, deletion.workflow, branch.branch, branch.created_at, deletion.deleted_at,
       EXISTS (
           SELECT 1 FROM journal
           WHERE journal.tenant = deletion.tenant AND journal.owner = deletion.owner AND journal.workflow = deletion.workflow
             AND journal.branch = branch.branch AND journal.seq > head.journal_seq
       ),
       head.manifest, head.version, head.journal_seq, head.journal_tip
FROM deletion
JOIN branch ON branch.tenant = deletion.tenant AND branch.owner = deletion.aside AND branch.workflow = deletion.workflow
LEFT JOIN head ON head.tenant = branch.tenant AND head.owner = branch.owner AND head.workflow = branch.workflow AND head.branch = branch.branch
WHERE deletion.tenant = :tenant AND deletion.deleted_at <= :before
  AND (:owner::text IS NULL OR deletion.owner = :owner::text) AND (:workflow::text IS NULL OR deletion.workflow = :workflow::text)
ORDER BY deletion.deleted_at DESC, branch.branch

-- removable_versions --
-- The versions of a deleted branch that nothing was forked from, nor from those behind them.
SELECT id FROM manifest
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  AND version > coalesce((
      SELECT max(version) FROM forked_version AS fork
      WHERE fork.tenant = :tenant AND fork.owner = :owner AND fork.workflow = :workflow AND fork.branch = :branch
  ), 0)

-- forks_of --
-- The branches that were forked from a version of a branch, or from one behind it.
SELECT by_owner, by_workflow, by_branch
FROM forked_version
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND version >= :version

-- deletion_is_due --
-- Whether something was deleted so long ago.
SELECT 1 FROM deletion WHERE tenant = :tenant AND deleted_at <= :before LIMIT 1

-- last_record --
-- The end of a branch's journal: of one whose branch is deleted, the tombstone.
SELECT seq, kind, manifest, body, hash, created_at
FROM journal WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch ORDER BY seq DESC LIMIT 1

-- journals --
-- The branches of a workflow that have a journal, whether or not they are there.
SELECT DISTINCT branch FROM journal WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow ORDER BY branch
