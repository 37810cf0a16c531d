-- channels --
-- Every channel that ever rested or has a rate.
SELECT name, rest_until, failures, since, reason FROM channel

-- wake_channel --
-- A channel is well again, or is to be tried at once.
UPDATE channel SET rest_until = 0, failures = 0, since = NULL, reason = NULL WHERE name = :name AND failures > 0

-- channel_failures --
-- Of what waits for another try, of each channel what is tried next: when, how often it failed, and why. Two of the same moment are both told.
SELECT lane.channel, lane.due_at, outbox.attempts, outbox.failure_reason
FROM (
    SELECT channel, min(due_at) AS due_at FROM lane
    WHERE channel > '' AND due_at IS NOT NULL AND retry_at IS NOT NULL AND lease_until IS NULL AND NOT parked AND tenant = coalesce(:tenant, tenant)
    GROUP BY channel
) AS following
JOIN lane ON lane.channel = following.channel AND lane.due_at = following.due_at
    AND lane.retry_at IS NOT NULL AND lane.lease_until IS NULL AND NOT lane.parked AND lane.tenant = coalesce(:tenant, lane.tenant)
JOIN outbox ON outbox.tenant = lane.tenant AND outbox.aggregatetype = lane.aggregatetype AND outbox.aggregateid = lane.aggregateid
    AND outbox.seq = lane.done_seq + 1

-- channel_lanes --
-- What each channel holds: undelivered rows, lanes, those in workers' hands, those that wait for another try, and those that are parked.
SELECT channel, CAST(sum(next_seq - 1 - done_seq) AS bigint), count(*),
       CAST(sum(CASE WHEN lease_until > (SELECT analemma_now()) AND NOT parked THEN 1 ELSE 0 END) AS bigint),
       CAST(sum(CASE WHEN retry_at IS NOT NULL AND lease_until IS NULL AND NOT parked THEN 1 ELSE 0 END) AS bigint),
       CAST(sum(CASE WHEN parked THEN 1 ELSE 0 END) AS bigint), min(CASE WHEN parked THEN NULL ELSE due_at END)
FROM lane
WHERE channel > '' AND (parked OR due_at IS NOT NULL) AND tenant = coalesce(:tenant, tenant)
GROUP BY channel

-- due_channels [sqlite] --
-- Channels that have something to deliver now and do not rest, and how often in a row each could not deliver. Walks from one channel to the
-- next, whatever they hold.
WITH RECURSIVE named (name) AS (
    SELECT min(channel) FROM lane WHERE due_at IS NOT NULL AND NOT parked AND channel > ''
    UNION ALL
    SELECT (SELECT min(channel) FROM lane WHERE due_at IS NOT NULL AND NOT parked AND channel > named.name)
    FROM named WHERE named.name IS NOT NULL
)
SELECT named.name, coalesce(channel.failures, 0)
FROM named LEFT JOIN channel ON channel.name = named.name
WHERE named.name IS NOT NULL AND coalesce(channel.rest_until, 0) <= (SELECT analemma_now())
  AND EXISTS (
      SELECT 1 FROM lane
      WHERE lane.channel = named.name AND lane.due_at IS NOT NULL AND NOT lane.parked AND lane.due_at <= (SELECT analemma_now())
        AND (lane.lease_until IS NULL OR lane.lease_until <= (SELECT analemma_now())) AND lane.tenant = coalesce(:tenant, lane.tenant)
  )

-- due_channels [postgres] --
-- Channels that have something to deliver now and do not rest, and how often in a row each could not deliver: the function is in
-- the schema's baseline.
SELECT * FROM analemma_due_channels(analemma_now(), :tenant::bigint)

-- rest_channel --
-- Has all workers leave a channel alone: twice as long with each failure in a row, and no shorter than it asked for; answers for how long. What others
-- say of it while it rests is the same failure once more.
INSERT INTO channel AS held (name, rest_until, failures, since, reason)
[sqlite] VALUES (:name, :now + max(min(:longest, :base), :asked), 1, :now, :reason)
[postgres] VALUES (:name, :now::bigint + greatest(least(:longest::bigint, :base::bigint), :asked::bigint), 1, :now::bigint, :reason)
ON CONFLICT (name) DO UPDATE
SET rest_until = CASE
[sqlite]         WHEN held.rest_until > :now THEN max(held.rest_until, :now + :asked)
[sqlite]         ELSE :now + max(min(:longest, :base << min(held.failures, 30)), :asked)
[postgres]         WHEN held.rest_until > :now::bigint THEN greatest(held.rest_until, :now::bigint + :asked::bigint)
[postgres]         ELSE :now::bigint + greatest(least(:longest::bigint, :base::bigint << least(held.failures, 30)::integer), :asked::bigint)
        END,
    failures = held.failures + CASE WHEN held.rest_until > :now::bigint THEN 0 ELSE 1 END,
    reason = excluded.reason, since = coalesce(held.since, excluded.since)
RETURNING rest_until - :now::bigint

-- hasten_channel --
-- Whatever of a channel waits for another try is due now, unless a worker has it.
UPDATE lane SET due_at = :now::bigint, retry_at = NULL
FROM (
    SELECT tenant, aggregatetype, aggregateid FROM lane
    WHERE channel = :name AND due_at IS NOT NULL AND NOT parked AND due_at > :now::bigint AND lease_until IS NULL
    ORDER BY tenant, aggregatetype, aggregateid
    FOR NO KEY UPDATE
) AS waiting
WHERE lane.tenant = waiting.tenant AND lane.aggregatetype = waiting.aggregatetype AND lane.aggregateid = waiting.aggregateid

-- take_turn --
-- The next time at which a channel with a rate may deliver, having reserved `duration` from then on; answers how long to wait for it.
INSERT INTO channel AS held (name, next_at) VALUES (:name, :now::bigint + :duration::bigint)
[sqlite] ON CONFLICT (name) DO UPDATE SET next_at = max(held.next_at, :now) + :duration
[postgres] ON CONFLICT (name) DO UPDATE SET next_at = greatest(held.next_at, :now::bigint) + :duration::bigint
RETURNING next_at - :duration::bigint - :now::bigint

-- held_lanes --
-- The places, from 0, of those of these lanes that are held under these fences, and will be for so long.
SELECT given.place - 1
FROM rows(:lanes) WITH ORDINALITY AS given (tenant bigint, aggregatetype text, aggregateid text, fence bigint, place)
CROSS JOIN lane
WHERE lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype AND lane.aggregateid = given.aggregateid
  AND lane.fence = given.fence AND lane.lease_until >= (SELECT analemma_now()) + :least::bigint
