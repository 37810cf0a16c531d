-- checkpoint_rows [text] --
-- Checkpoints, as callers get them.
SELECT thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas
FROM thread_checkpoint

-- copied_checkpoints [text] --
-- The same as another thread's.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas)
SELECT tenant, owner, :target, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas
FROM thread_checkpoint

-- copied_writes [text] --
-- What was written on top of checkpoints, as another thread's.
INSERT INTO thread_write
    (tenant, owner, thread, branch, checkpoint, task, place, task_path, channel, kind, codec, size, digest, body)
SELECT tenant, owner, :target, branch, checkpoint, task, place, task_path, channel, kind, codec, size, digest, body
FROM thread_write

-- newer_of_others [text] --
-- The newest checkpoint, if it is neither the one that a run has read nor one of its own.
SELECT newest.checkpoint FROM (
    SELECT checkpoint, writer FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
    ORDER BY checkpoint DESC LIMIT 1
) AS newest
WHERE newest.checkpoint <> :read AND coalesce(newest.writer, '') <> :fence  -- guard: thread.overtaken

-- put_checkpoint --
-- The row of a checkpoint, beside the commit of its version; refused if the parent is another version by now, or none at all, or if the newest checkpoint
-- is neither the one that a fenced run has read nor one of its own.
(tenant bigint, owner text, thread text, branch text, checkpoint text, namespace text, parent text, manifest bytea, run text, metadata_kind text,
 metadata bytea, alias text, deltas text, writer text, base bytea, fence text, read text)

INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas, writer)
SELECT :tenant, :owner, :thread, :branch, :checkpoint, :namespace, :parent, :manifest, :run, :metadata_kind, :metadata, :alias, :deltas, :writer
WHERE (:base IS NULL OR EXISTS (
    SELECT 1 FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :parent AND manifest = :base
)) AND (:fence IS NULL OR NOT EXISTS (
include newer_of_others
))
ON CONFLICT (tenant, owner, thread, branch, checkpoint) DO UPDATE
SET namespace = excluded.namespace, parent = excluded.parent, manifest = excluded.manifest, run = excluded.run,
    metadata_kind = excluded.metadata_kind, metadata = excluded.metadata, alias = excluded.alias, deltas = excluded.deltas, writer = excluded.writer
=> 1 or thread_moved;

-- commit_checkpoint --
-- A version on a thread, and the row of its checkpoint.
()

often one heads, blocks, one versions, one records;

include commit_versions;
include put_checkpoint;

-- overtaken --
-- The newest checkpoint, if another run has stored it.
include newer_of_others

-- adopt_version --
-- A version that somebody else made the head of a thread's branch becomes a checkpoint; nothing happens if it is one already.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas)
SELECT :tenant, :owner, :thread, :branch, :checkpoint, :namespace, :parent::text, :manifest, :run::text, :metadata_kind, :metadata,
       :alias::text, :deltas::text
WHERE EXISTS (
    SELECT 1 FROM head
    WHERE tenant = :tenant AND owner = :owner AND workflow = :thread AND branch = :branch AND manifest = :manifest
    FOR SHARE
)
ON CONFLICT (tenant, owner, thread, branch, checkpoint) DO NOTHING

-- checkpoints_of_runs --
-- Every checkpoint that one of these runs made.
include checkpoint_rows
WHERE run = ANY (:runs::text[]) AND owner = :owner AND tenant = :tenant

-- ancestors --
-- The checkpoints from which one comes, nearest first, from a given one on.
WITH RECURSIVE line (checkpoint, parent, manifest, distance) AS (
    SELECT checkpoint, parent, manifest, 1::bigint FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :checkpoint
    UNION ALL
    SELECT next.checkpoint, next.parent, next.manifest, line.distance + 1
    FROM line JOIN thread_checkpoint AS next
        ON next.tenant = :tenant AND next.owner = :owner AND next.thread = :thread AND next.branch = :branch
        AND next.checkpoint = line.parent
    WHERE line.distance < :limit
)
SELECT checkpoint, parent, manifest FROM line ORDER BY distance

-- writes_to_channels --
-- What tasks wrote to some channels on top of some checkpoints.
SELECT checkpoint, task, place, task_path, channel, kind, codec, size, digest, body
FROM thread_write
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND checkpoint = ANY (:checkpoints::text[])
  AND channel = ANY (:channels::text[])

-- hold_thread --
-- Whoever makes a thread by copying is the only one to do so, until the transaction ends.
[postgres] SELECT pg_advisory_xact_lock(hashtextextended(:owner::text || '/' || :thread::text || '/thread', :tenant::integer + {number}))

-- copy_checkpoints --
-- All checkpoints of a thread, for another. They are held meanwhile, so that what they keep is kept without a gap.
include copied_checkpoints
WHERE tenant = :tenant AND owner = :owner AND thread = :thread
[postgres] ORDER BY branch, checkpoint
FOR SHARE

-- copy_line --
-- Some checkpoints of a namespace, for another thread, held meanwhile.
include copied_checkpoints
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND checkpoint = ANY (:checkpoints::text[])
[postgres] ORDER BY checkpoint
FOR SHARE

-- copy_line_writes --
-- What was written on top of some checkpoints of a namespace, for another thread; on top of the one at the end, only by some runs or by none.
include copied_writes
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND checkpoint = ANY (:checkpoints::text[])
  AND (checkpoint <> :end OR coalesce(writer, '') = ANY (:writers::text[]))

-- point_checkpoint --
-- The same state in another version: compare-and-set.
UPDATE thread_checkpoint SET manifest = :manifest
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :checkpoint
  AND manifest = :expected

-- checkpoint --
-- One checkpoint.
include checkpoint_rows
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :checkpoint

-- last_of_run --
-- The newest checkpoint that a run has read or stored.
include checkpoint_rows
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND (checkpoint = :read OR writer = :fence)
ORDER BY checkpoint DESC LIMIT 1

-- checkpoint_of_version --
-- The checkpoint that is this version.
include checkpoint_rows
WHERE manifest = :manifest AND tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
ORDER BY checkpoint DESC LIMIT 1

-- checkpoint_of_alias --
-- The checkpoint that calls itself so.
SELECT checkpoint FROM thread_checkpoint
WHERE alias = :alias AND tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch

-- aliases --
-- What checkpoints of a namespace call themselves that repeat others.
SELECT alias FROM thread_checkpoint
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND alias IS NOT NULL

-- continued --
-- Whether a checkpoint has been built upon.
SELECT 1 FROM thread_checkpoint
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND parent = :checkpoint
LIMIT 1

-- waiting_checkpoint --
-- The newest checkpoint of a namespace on which a task waits, or failed, if it is there.
include checkpoint_rows
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = (
    SELECT max(checkpoint) FROM thread_write
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
      AND channel IN ('__interrupt__', '__error__')
)

-- newest_checkpoint --
-- The checkpoint with the greatest id, and the branch's head if that is no checkpoint: then somebody else has moved it.
SELECT newest.thread, newest.branch, newest.checkpoint, newest.namespace, newest.parent, newest.manifest, newest.run,
       newest.metadata_kind, newest.metadata, newest.alias, newest.deltas, CASE
           WHEN head.manifest = newest.manifest THEN NULL
           WHEN EXISTS (
               SELECT 1 FROM thread_checkpoint AS known
               WHERE known.manifest = head.manifest AND known.tenant = :tenant AND known.owner = :owner
                 AND known.thread = :thread AND known.branch = :branch
           ) THEN NULL
           ELSE head.manifest
       END
FROM (SELECT 1 AS one) AS always
LEFT JOIN (
    SELECT * FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
    ORDER BY checkpoint DESC LIMIT 1
) AS newest ON 1 = 1
LEFT JOIN head ON head.tenant = :tenant AND head.owner = :owner AND head.workflow = :thread AND head.branch = :branch

-- named_versions --
-- Checkpoints of one namespace by id, and whether others name the same version: copies of a thread do, under the same id.
SELECT mine.checkpoint, mine.namespace, mine.parent, mine.manifest,
       EXISTS (
           SELECT 1 FROM thread_checkpoint AS other
           WHERE other.manifest = mine.manifest AND other.tenant = mine.tenant AND other.checkpoint <> mine.checkpoint
             AND (other.owner <> mine.owner OR other.thread <> mine.thread OR other.branch <> mine.branch)
       ),
       EXISTS (
           SELECT 1 FROM thread_checkpoint AS other
           WHERE other.manifest = mine.manifest AND other.tenant = mine.tenant AND other.checkpoint <> mine.checkpoint
             AND other.owner = mine.owner AND other.thread = mine.thread AND other.branch = mine.branch
             AND other.alias IS NULL AND mine.alias IS NULL
       )
FROM thread_checkpoint AS mine
WHERE mine.tenant = :tenant AND mine.owner = :owner AND mine.thread = :thread AND mine.branch = :branch
  AND mine.checkpoint > :after
ORDER BY mine.checkpoint LIMIT :limit

-- checkpoints_of_branch --
-- Checkpoints of one namespace, newest first.
include checkpoint_rows
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint < :before
ORDER BY checkpoint DESC LIMIT :limit

-- checkpoints_of_thread --
-- Checkpoints of all namespaces of a thread, newest first, below a place.
include checkpoint_rows
WHERE tenant = :tenant AND owner = :owner AND thread = :thread
  AND (checkpoint < :before OR (checkpoint = :before AND branch > :after_branch))
ORDER BY checkpoint DESC, branch LIMIT :limit

-- checkpoints_of_all --
-- Checkpoints of all threads, newest first, below a place.
include checkpoint_rows
WHERE tenant = :tenant AND owner = :owner AND checkpoint <= :before
  AND (checkpoint < :before OR thread > :after_thread OR (thread = :after_thread AND branch > :after_branch))
ORDER BY checkpoint DESC, thread, branch LIMIT :limit

-- written_namespaces [text] --
-- Those of a thread that have checkpoints or writes.
SELECT branch FROM thread_checkpoint WHERE tenant = :tenant AND owner = :owner AND thread = :thread
UNION
SELECT branch FROM thread_write WHERE tenant = :tenant AND owner = :owner AND thread = :thread

-- namespaces --
-- The namespaces of a thread that have checkpoints or writes.
include written_namespaces

-- thread_places --
-- The same, and the branches of the thread's workflow: a thread that has none of them is not there.
include written_namespaces
UNION
SELECT branch FROM head WHERE tenant = :tenant AND owner = :owner AND workflow = :thread

-- put_write --
-- What a task wrote: whoever writes it again changes nothing. Of what it reports of itself (an error, an interrupt, an answer to one), the last report counts.
INSERT INTO thread_write
    (tenant, owner, thread, branch, checkpoint, task, place, task_path, channel, kind, codec, size, digest, body, writer)
VALUES
    (:tenant, :owner, :thread, :branch, :checkpoint, :task, :place, :task_path, :channel, :kind, :codec, :size, :digest,
     :body, :writer)
ON CONFLICT (tenant, owner, thread, branch, checkpoint, task, place) DO UPDATE
SET task_path = excluded.task_path, channel = excluded.channel, kind = excluded.kind, codec = excluded.codec,
    size = excluded.size, digest = excluded.digest, body = excluded.body, writer = excluded.writer
WHERE thread_write.place < 0

-- writers --
-- The runs that wrote on top of a checkpoint.
SELECT DISTINCT writer FROM thread_write
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :checkpoint
  AND writer IS NOT NULL

-- writes --
-- What tasks wrote on top of one checkpoint.
SELECT checkpoint, task, place, task_path, channel, kind, codec, size, digest, body, writer FROM thread_write
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :checkpoint

-- strangers --
-- The branches of some threads whose head is no checkpoint: somebody else has moved it.
SELECT head.workflow, head.branch FROM head
WHERE head.tenant = :tenant AND head.owner = :owner AND head.workflow BETWEEN :first AND :last AND NOT EXISTS (
    SELECT 1 FROM thread_checkpoint AS known
    WHERE known.manifest = head.manifest AND known.tenant = head.tenant AND known.owner = head.owner
      AND known.thread = head.workflow AND known.branch = head.branch
)

-- drop_checkpoints --
-- Every checkpoint of a thread or of one namespace, in the order of their keys, as everyone who holds several of them.
DELETE FROM thread_checkpoint
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND (branch, checkpoint) IN (
    SELECT branch, checkpoint FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND (:branch::text IS NULL OR branch = :branch)
    ORDER BY branch, checkpoint FOR UPDATE
)

-- drop_writes_of_branch --
-- Every write of a namespace that is on top of a stored checkpoint.
DELETE FROM thread_write
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND EXISTS (
    SELECT 1 FROM thread_checkpoint
    WHERE thread_checkpoint.tenant = thread_write.tenant AND thread_checkpoint.owner = thread_write.owner
      AND thread_checkpoint.thread = thread_write.thread AND thread_checkpoint.branch = thread_write.branch
      AND thread_checkpoint.checkpoint = thread_write.checkpoint
)

-- drop_writes_of_thread --
-- Every write of a thread.
DELETE FROM thread_write WHERE tenant = :tenant AND owner = :owner AND thread = :thread

-- drop_checkpoint --
-- One checkpoint, unless it is another version by now.
DELETE FROM thread_checkpoint
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :checkpoint
  AND manifest = :manifest

-- drop_writes --
-- What was written on top of a checkpoint that is gone.
DELETE FROM thread_write
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :checkpoint
  AND NOT EXISTS (
      SELECT 1 FROM thread_checkpoint
      WHERE thread_checkpoint.tenant = thread_write.tenant AND thread_checkpoint.owner = thread_write.owner
        AND thread_checkpoint.thread = thread_write.thread AND thread_checkpoint.branch = thread_write.branch
        AND thread_checkpoint.checkpoint = thread_write.checkpoint
  )

-- copy_writes --
-- All writes of a thread, for another.
include copied_writes
WHERE tenant = :tenant AND owner = :owner AND thread = :thread

-- thread_roots --
-- Every version that is a checkpoint, whether or not its own row is still there.
SELECT DISTINCT manifest, manifest FROM thread_checkpoint
WHERE tenant = :tenant AND manifest > :after ORDER BY manifest LIMIT :limit
