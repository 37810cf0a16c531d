-- Threads of LangGraph: which version each checkpoint is, what tasks wrote since, and what is left of workflows that were removed.

-- A checkpoint is a version of the branch that stands for its namespace; a copy's is a version of the thread it was copied from. Its row
-- is a root by itself, so that it outlives the version's own row. `metadata` repeats what the version says, so that history needs no blocks.
CREATE TABLE thread_checkpoint (
    tenant        integer NOT NULL,
    owner         text NOT NULL,
    thread        text NOT NULL,
    branch        text NOT NULL,
    checkpoint    text NOT NULL,
    namespace     text NOT NULL,
    parent        text,
    manifest      blob NOT NULL,
    run           text,
    metadata_kind text NOT NULL,
    metadata      blob NOT NULL,
    PRIMARY KEY (tenant, owner, thread, branch, checkpoint)
);
-- The newest of all threads first.
CREATE INDEX thread_checkpoint_newest ON thread_checkpoint (owner, tenant, checkpoint);
-- What the collector reads, and how one finds out whether a version is a checkpoint.
CREATE INDEX thread_checkpoint_manifest ON thread_checkpoint (manifest, tenant);
CREATE INDEX thread_checkpoint_run ON thread_checkpoint (run, owner, tenant) WHERE run IS NOT NULL;

-- What a task wrote on top of a checkpoint, which may be stored later than this.
CREATE TABLE thread_write (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    thread     text NOT NULL,
    branch     text NOT NULL,
    checkpoint text NOT NULL,
    task       text NOT NULL,
    place      integer NOT NULL,
    task_path  text NOT NULL,
    channel    text NOT NULL,
    kind       text NOT NULL,
    codec      integer NOT NULL,
    size       integer NOT NULL,
    digest     blob NOT NULL,
    body       blob NOT NULL,
    PRIMARY KEY (tenant, owner, thread, branch, checkpoint, task, place)
);

-- Branches that were removed with everything they held: where each stood, and the end of its journal.
CREATE TABLE removal (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    removed_at integer NOT NULL,
    body       blob NOT NULL,
    hash       blob NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, hash)
);

-- A table of roots was added: no collector that does not know it may go on, if there has been one.
UPDATE gc SET pass = pass + 1 WHERE pass > 0;
