-- Workspaces, the operation that each is in the middle of, and the archives that were made of them.

-- operation is the lock: whoever moves it away from NONE adds 1 to the fence, and writes only for as long as that is his. What a
-- worker that died began is taken over, fence and all, after lease_until. Times are the database's.
CREATE TABLE workspace (
    tenant      integer NOT NULL,
    id          text NOT NULL,
    owner       text NOT NULL,
    volume      text NOT NULL,
    status      text NOT NULL CHECK (status IN ('PENDING', 'COLD', 'WARM', 'RUNNING', 'ERROR', 'DELETED')),
    operation   text NOT NULL CHECK (operation IN (
        'NONE', 'INITIALIZING', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING'
    )),
    -- How the operation is to end, where its name does not say.
    intent      text,
    -- Of the newest operation that archives.
    op_id       text,
    -- The archive that the workspace has; the key is that of its commit marker.
    archive_op  text,
    archive_key text,
    fence       integer NOT NULL,
    holder      text,
    lease_until integer NOT NULL,
    error       text,
    created_at  integer NOT NULL,
    updated_at  integer NOT NULL,
    deleted_at  integer,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX workspace_busy ON workspace (tenant, lease_until) WHERE operation <> 'NONE';

-- One archive: everything below {workspace}/{op_id}. A claimed one belongs to the collector: nobody finishes it or goes back to it.
CREATE TABLE archive_unit (
    number     integer PRIMARY KEY AUTOINCREMENT,
    tenant     integer NOT NULL,
    workspace  text NOT NULL,
    op_id      text NOT NULL,
    state      text NOT NULL CHECK (state IN ('writing', 'kept', 'claimed')),
    format     integer,
    sha256     text,
    size       integer,
    files      integer,
    bytes      integer,
    -- Of format 2: the block of its index, which leads to all others.
    root       blob,
    created_at integer NOT NULL,
    kept_at    integer,
    claimed_at integer,
    UNIQUE (tenant, workspace, op_id)
);
CREATE INDEX archive_unit_roots ON archive_unit (tenant, number) WHERE state = 'kept';

-- A table of roots was added: no collector that does not know it may go on, if there has been one.
UPDATE gc SET pass = pass + 1 WHERE pass > 0;
