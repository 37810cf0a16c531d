-- Workspaces, the operation that each is in the middle of, and the archives that were made of them.

-- operation is the lock: whoever moves it away from NONE adds 1 to the fence, and writes only for as long as that is his. What a
-- worker that died began is taken over, fence and all, after lease_until. Times are the database's.
CREATE TABLE workspace (
    tenant      integer NOT NULL,
    id          text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    volume      text NOT NULL,
    status      text NOT NULL CHECK (status IN ('PENDING', 'COLD', 'WARM', 'RUNNING', 'ERROR', 'DELETED')),
    operation   text NOT NULL CHECK (operation IN (
        'NONE', 'INITIALIZING', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING'
    )),
    -- How the operation is to end, where its name does not say.
    intent      text,
    -- Of the newest operation that archives.
    op_id       text COLLATE "C",
    -- The archive that the workspace has; the key is that of its commit marker.
    archive_op  text COLLATE "C",
    archive_key text,
    fence       bigint NOT NULL,
    holder      text,
    lease_until bigint NOT NULL,
    error       text,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    deleted_at  bigint,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX workspace_busy ON workspace (tenant, lease_until) WHERE operation <> 'NONE';

-- One archive: everything below {workspace}/{op_id}. A claimed one belongs to the collector: nobody finishes it or goes back to it.
CREATE TABLE archive_unit (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     integer NOT NULL,
    workspace  text COLLATE "C" NOT NULL,
    op_id      text COLLATE "C" NOT NULL,
    state      text NOT NULL CHECK (state IN ('writing', 'kept', 'claimed')),
    format     integer,
    sha256     text,
    size       bigint,
    files      bigint,
    bytes      bigint,
    -- Of format 2: the block of its index, which leads to all others.
    root       bytea,
    created_at bigint NOT NULL,
    kept_at    bigint,
    claimed_at bigint,
    UNIQUE (tenant, workspace, op_id)
);
CREATE INDEX archive_unit_roots ON archive_unit (tenant, number) WHERE state = 'kept';

-- A table of roots was added: no collector that does not know it may go on, if there has been one.
UPDATE gc SET pass = pass + 1 WHERE pass > 0;
