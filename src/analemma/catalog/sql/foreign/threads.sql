-- foreign_tables --
-- Whether this is a database of LangGraph's own saver.
[sqlite] SELECT count(*) AS found FROM sqlite_master WHERE type = 'table' AND name IN ('checkpoints', 'writes')
[postgres] SELECT count(*) AS found FROM information_schema.tables
[postgres] WHERE table_schema = current_schema() AND table_name IN ('checkpoints', 'checkpoint_writes')

-- foreign_places --
-- Every namespace of every thread, with how many checkpoints it has.
SELECT thread_id, checkpoint_ns, count(*) FROM checkpoints GROUP BY thread_id, checkpoint_ns ORDER BY thread_id, checkpoint_ns

-- foreign_checkpoints --
-- The checkpoints of a namespace, oldest first.
SELECT checkpoint_id FROM checkpoints
WHERE thread_id = :thread AND checkpoint_ns = :namespace
[sqlite] ORDER BY checkpoint_id
[postgres] ORDER BY checkpoint_id COLLATE "C"

-- foreign_writes --
-- What tasks wrote on top of a checkpoint. In older databases this has fewer columns.
[sqlite] SELECT * FROM writes
[postgres] SELECT * FROM checkpoint_writes
WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :checkpoint
