-- foreign_tables --
-- Whether this is a database of LangGraph's own saver.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('checkpoints', 'writes')

-- foreign_columns --
-- Whether writes have a path, which they have not in older databases.
SELECT count(*) FROM pragma_table_info('writes') WHERE name = 'task_path'

-- foreign_places --
-- Every namespace of every thread, with how many checkpoints it has.
SELECT thread_id, checkpoint_ns, count(*) FROM checkpoints GROUP BY thread_id, checkpoint_ns ORDER BY thread_id, checkpoint_ns

-- foreign_checkpoints --
-- The checkpoints of a namespace, oldest first.
SELECT checkpoint_id FROM checkpoints WHERE thread_id = :thread AND checkpoint_ns = :namespace ORDER BY checkpoint_id

-- foreign_writes --
-- What tasks wrote on top of a checkpoint.
SELECT task_id, idx, task_path, channel, type, value FROM writes
WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :checkpoint

-- foreign_writes_without_path --
-- The same in older databases.
SELECT task_id, idx, '', channel, type, value FROM writes
WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :checkpoint
