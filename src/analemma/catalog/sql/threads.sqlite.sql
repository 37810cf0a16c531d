-- checkpoints_of_runs --
-- Every checkpoint that one of these runs made.
SELECT made.thread, made.branch, made.checkpoint, made.namespace, made.parent, made.manifest, made.run,
       made.metadata_kind, made.metadata, made.alias, made.deltas
FROM json_each(:runs) AS wanted CROSS JOIN thread_checkpoint AS made
    ON made.run = wanted.value AND made.owner = :owner AND made.tenant = :tenant

-- ancestors --
-- The checkpoints from which one comes, nearest first, from a given one on.
WITH RECURSIVE line (checkpoint, parent, manifest, distance) AS (
    SELECT checkpoint, parent, manifest, 1 FROM thread_checkpoint
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
FROM json_each(:checkpoints) AS wanted CROSS JOIN thread_write
    ON thread_write.tenant = :tenant AND thread_write.owner = :owner AND thread_write.thread = :thread
    AND thread_write.branch = :branch AND thread_write.checkpoint = wanted.value
WHERE thread_write.channel IN (SELECT value FROM json_each(:channels))

-- copy_checkpoints --
-- All checkpoints of a thread, for another. There is one writer, so nothing removes them meanwhile.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas)
SELECT tenant, owner, :target, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas
FROM thread_checkpoint WHERE tenant = :tenant AND owner = :owner AND thread = :thread

-- copy_line --
-- Some checkpoints of a namespace, for another thread.
INSERT INTO thread_checkpoint
    (tenant, owner, thread, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas)
SELECT tenant, owner, :target, branch, checkpoint, namespace, parent, manifest, run, metadata_kind, metadata, alias, deltas
FROM thread_checkpoint
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND checkpoint IN (SELECT value FROM json_each(:checkpoints))

-- copy_line_writes --
-- What was written on top of some checkpoints of a namespace, for another thread.
INSERT INTO thread_write
    (tenant, owner, thread, branch, checkpoint, task, place, task_path, channel, kind, codec, size, digest, body)
SELECT tenant, owner, :target, branch, checkpoint, task, place, task_path, channel, kind, codec, size, digest, body
FROM thread_write
WHERE tenant = :tenant AND owner = :owner AND thread = :thread AND branch = :branch
  AND checkpoint IN (SELECT value FROM json_each(:checkpoints))
