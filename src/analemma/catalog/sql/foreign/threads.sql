-- foreign_tables [sqlite] --
-- Whether this is a database of LangGraph's own saver.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('checkpoints', 'writes')

-- foreign_tables [postgres] --
-- Whether this is a database of LangGraph's own saver.
SELECT count(*) FROM information_schema.tables
WHERE table_schema = current_schema() AND table_name IN ('checkpoints', 'checkpoint_writes')

-- foreign_columns [sqlite] --
-- Whether writes have a path, which they have not in older databases.
SELECT count(*) FROM pragma_table_info('writes') WHERE name = 'task_path'

-- foreign_columns [postgres] --
-- Whether writes have a path, which they have not in older databases.
SELECT count(*) FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = 'checkpoint_writes' AND column_name = 'task_path'

-- foreign_places --
-- Every namespace of every thread, with how many checkpoints it has.
SELECT thread_id, checkpoint_ns, count(*) FROM checkpoints GROUP BY thread_id, checkpoint_ns ORDER BY thread_id, checkpoint_ns

-- foreign_checkpoints [sqlite] --
-- The checkpoints of a namespace, oldest first.
SELECT checkpoint_id FROM checkpoints WHERE thread_id = :thread AND checkpoint_ns = :namespace ORDER BY checkpoint_id

-- foreign_checkpoints [postgres] --
-- The checkpoints of a namespace, oldest first.
SELECT checkpoint_id FROM checkpoints
WHERE thread_id = :thread AND checkpoint_ns = :namespace ORDER BY checkpoint_id COLLATE "C"

-- foreign_writes --
-- What tasks wrote on top of a checkpoint.
[sqlite] SELECT task_id, idx, task_path, channel, type, value FROM writes
[postgres] SELECT task_id, idx, task_path, channel, type, blob FROM checkpoint_writes
WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :checkpoint

-- foreign_writes_without_path --
-- The same in older databases.
[sqlite] SELECT task_id, idx, '', channel, type, value FROM writes
[postgres] SELECT task_id, idx, '', channel, type, blob FROM checkpoint_writes
WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :checkpoint
