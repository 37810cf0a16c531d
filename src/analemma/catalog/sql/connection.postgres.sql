-- begin_write --
-- READ COMMITTED: the commit protocol locks rows in an order that makes it enough, and never fails to serialize.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- begin_read --
-- One snapshot for the whole transaction.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- begin_snapshot --
-- One snapshot for the whole transaction, which fails if it writes a row that was changed since.
BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE

-- take_time --
-- Between its statements this transaction may wait as long as it likes: it holds nobody up.
SET LOCAL idle_in_transaction_session_timeout = 0

-- commit_durably --
-- This transaction's COMMIT returns when it is on disk, whatever the server is set to. Settings that ask for more stay.
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')

-- commit_transaction --
-- Returns when the server has it on disk, or as its synchronous_commit says.
COMMIT

-- rollback_transaction --
-- Everything since BEGIN.
ROLLBACK
