-- put_checkpoint --
-- The row of a checkpoint, beside the commit of its version. No row touched means that the parent is another version by now, or none at all, or
-- that the newest checkpoint is neither the one that a fenced run has read nor one of its own.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas,
     writer)
SELECT :tenant, :owner, :thread, :branch, :checkpoint, :namespace, :parent::text, :manifest, :run::text, :metadata_kind,
       :metadata, :alias::text, :deltas::text, :writer::text
WHERE (:base::bytea IS NULL OR EXISTS (
    SELECT FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch AND checkpoint = :parent::text
      AND manifest = :base::bytea
)) AND (:fence::text IS NULL OR NOT EXISTS (
    SELECT 1 FROM (
        SELECT checkpoint, writer FROM thread_checkpoint
        WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
        ORDER BY checkpoint DESC LIMIT 1
    ) AS newest
    WHERE newest.checkpoint <> :read::text AND coalesce(newest.writer, '') <> :fence::text
))
ON CONFLICT (tenant, owner, thread, branch, checkpoint) DO UPDATE
SET namespace = excluded.namespace, parent = excluded.parent, manifest = excluded.manifest, run = excluded.run,
    metadata_kind = excluded.metadata_kind, metadata = excluded.metadata, alias = excluded.alias,
    deltas = excluded.deltas, writer = excluded.writer

-- drop_checkpoints_of_branch --
-- Every checkpoint of a namespace, in the order of their keys, as everyone who holds several of them.
WITH held AS MATERIALIZED (
    SELECT checkpoint FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
    ORDER BY checkpoint
    FOR UPDATE
)
DELETE FROM thread_checkpoint USING held
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND thread_checkpoint.checkpoint = held.checkpoint

-- drop_checkpoints_of_thread --
-- Every checkpoint of a thread, in the same order.
WITH held AS MATERIALIZED (
    SELECT branch, checkpoint FROM thread_checkpoint
    WHERE tenant = :tenant AND owner = :owner AND thread = :thread
    ORDER BY branch, checkpoint
    FOR UPDATE
)
DELETE FROM thread_checkpoint USING held
WHERE tenant = :tenant AND owner = :owner AND thread = :thread
  AND thread_checkpoint.branch = held.branch AND thread_checkpoint.checkpoint = held.checkpoint

-- adopt_version --
-- A version that somebody else made the head of a thread's branch becomes a checkpoint; nothing happens if it is one already.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas)
SELECT :tenant, :owner, :thread, :branch, :checkpoint, :namespace, :parent::text, :manifest, NULL, :metadata_kind, :metadata,
       :alias::text, :deltas::text
WHERE EXISTS (
    SELECT FROM head
    WHERE tenant = :tenant AND owner = :owner AND workflow = :thread AND branch = :branch AND manifest = :manifest
    FOR SHARE
)
ON CONFLICT (tenant, owner, thread, branch, checkpoint) DO NOTHING

-- checkpoints_of_runs --
-- Every checkpoint that one of these runs made.
SELECT thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas
FROM thread_checkpoint
WHERE run IN (SELECT value FROM json_array_elements_text(:runs::json)) AND owner = :owner AND tenant = :tenant

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
  AND checkpoint IN (SELECT value FROM json_array_elements_text(:checkpoints::json))
  AND channel IN (SELECT value FROM json_array_elements_text(:channels::json))

-- hold_thread --
-- Whoever makes a thread by copying is the only one to do so, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended(:owner::text || '/' || :thread::text || '/thread', :tenant::integer))

-- copy_checkpoints --
-- All checkpoints of a thread, for another. They are held meanwhile, so that what they keep is kept without a gap.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas)
SELECT tenant, owner, :target, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas
FROM thread_checkpoint WHERE tenant = :tenant AND owner = :owner AND thread = :thread
ORDER BY branch, checkpoint
FOR SHARE

-- copy_line --
-- Some checkpoints of a namespace, for another thread, held meanwhile.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas)
SELECT tenant, owner, :target, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas
FROM thread_checkpoint
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND checkpoint IN (SELECT value FROM json_array_elements_text(:checkpoints::json))
ORDER BY checkpoint
FOR SHARE

-- copy_line_writes --
-- What was written on top of some checkpoints of a namespace, for another thread.
INSERT INTO thread_write
    (tenant, owner, thread, branch, checkpoint, task, place, task_path, channel, kind, codec, size, digest, body)
SELECT tenant, owner, :target, branch, checkpoint, task, place, task_path, channel, kind, codec, size, digest, body
FROM thread_write
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND checkpoint IN (SELECT value FROM json_array_elements_text(:checkpoints::json))
