-- begin_write --
-- Takes the write lock at once: a transaction that began by reading could only fail when it came to write.
BEGIN IMMEDIATE

-- begin_read --
-- The snapshot is taken by the first statement that follows.
BEGIN

-- commit_transaction --
-- Returns when the write-ahead log is on disk (with synchronous = FULL).
COMMIT

-- rollback_transaction --
-- Everything since BEGIN.
ROLLBACK

-- open_savepoint --
-- One request of a shared transaction begins.
SAVEPOINT request

-- keep_savepoint --
-- The request is in; it becomes durable with the shared COMMIT.
RELEASE request

-- drop_savepoint --
-- The request failed; what it wrote goes, what the others wrote stays.
ROLLBACK TO request

-- use_wal --
-- Readers never wait for the writer, nor the writer for readers; a commit is one append and one fsync.
PRAGMA journal_mode = WAL

-- synchronous_full --
-- A commit that returned survives a power cut: the log is fsynced by every commit.
PRAGMA synchronous = FULL

-- synchronous_normal --
-- A commit survives kill -9, but a power cut may take back the newest ones; never corrupts.
PRAGMA synchronous = NORMAL

-- synchronous_level --
-- What commits do now. Not the pragma itself, which a prepared statement answers as it was when it was prepared.
SELECT synchronous FROM pragma_synchronous

-- enforce_foreign_keys --
-- Off by default in SQLite, per connection.
PRAGMA foreign_keys = ON

-- checkpoint_every --
-- Pages of log between checkpoints: 16 MB. The default 4 MB writes the same hot index pages back four times as often.
PRAGMA wal_autocheckpoint = 4000

-- limit_idle_log --
-- After a burst the log file shrinks back to this when it is next reset: 64 MB.
PRAGMA journal_size_limit = 67108864

-- temporary_in_memory --
-- Savepoints keep old pages in a temporary file otherwise, one system call each.
PRAGMA temp_store = MEMORY

-- cache_for_writing --
-- 32 MB of pages: block ids are random, so every commit touches index pages all over; the default 2 MB reads them anew each time.
PRAGMA cache_size = -32768

-- leave_free_pages_alone --
-- Some systems build SQLite so that it fills every page that becomes free with zeros, and logs it: deleting then writes as much as storing
-- did. What was deleted is overwritten where a page is written anyway, and by what comes next; erasing for good is what keys are for.
PRAGMA secure_delete = FAST

-- refuse_writes --
-- Connections of the reading pool cannot write, whatever they are handed.
PRAGMA query_only = ON

-- truncate_log --
-- Copies the whole log back and empties it; waits for readers of old snapshots as long as the busy timeout allows.
PRAGMA wal_checkpoint(TRUNCATE)

-- probe --
-- Cheap proof that the file is a database and can be read.
PRAGMA schema_version

-- declared_columns --
-- Every column of every table, with the type that the schema declares.
SELECT t.name AS table_name, c.name AS column_name, upper(c.type) AS declared
FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c
WHERE t.type = 'table'
