-- Shipping: what each sink was sent, and lanes that only their own channel's batches take.

-- Lanes of a channel are claimed by that channel's batches alone: one that is slow, or rests, holds up nobody else. The channel of
-- shipping is the id of the sink rule; '' is what every worker takes event by event. A lane never changes its channel.
ALTER TABLE lane ADD COLUMN channel text NOT NULL DEFAULT '';
DROP INDEX lane_due;
CREATE INDEX lane_due ON lane (channel, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;
DROP INDEX lane_due_of;
CREATE INDEX lane_due_of ON lane (tenant, channel, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;

-- How a channel is doing, for all workers. One that rests is left alone, whatever it has to deliver. Times are the database's.
CREATE TABLE channel (
    name       text PRIMARY KEY,
    rest_until integer NOT NULL DEFAULT 0,
    -- How often in a row nothing could be delivered; 0: it is well.
    failures   integer NOT NULL DEFAULT 0,
    -- Since when.
    since      integer,
    reason     text,
    -- When the next delivery of a channel with a rate may begin.
    next_at    integer NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- What a sink was sent: of each document the newest state that the sink is known to have, by the entity's ship_seq. `place` tells
-- documents of one id apart where the rule's target does, by tenant or entity type; otherwise it is ''. Whose document it is never
-- changes: another entity of the same document id is refused. It is written down before the first state is shipped, with the ship_seq -1.
CREATE TABLE sink_state (
    sink       text NOT NULL,
    place      text NOT NULL,
    doc_id     text NOT NULL,
    tenant     integer NOT NULL,
    entity     integer NOT NULL,
    version    integer NOT NULL,
    ship_seq   integer NOT NULL,
    deleted    integer NOT NULL,
    shipped_at integer NOT NULL,
    PRIMARY KEY (sink, place, doc_id)
) WITHOUT ROWID;
CREATE INDEX sink_state_of_entity ON sink_state (entity, sink);
