-- begin_write --
-- READ COMMITTED: the commit protocol locks rows in an order that makes it enough, and never fails to serialize.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- begin_read --
-- One snapshot for the whole transaction.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- commit_transaction --
-- Returns when the server has it on disk, or as its synchronous_commit says.
COMMIT

-- rollback_transaction --
-- Everything since BEGIN.
ROLLBACK
