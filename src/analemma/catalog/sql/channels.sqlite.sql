-- due_channels --
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
WHERE named.name IS NOT NULL AND coalesce(channel.rest_until, 0) <= :now
  AND EXISTS (
      SELECT 1 FROM lane
      WHERE lane.channel = named.name AND lane.due_at IS NOT NULL AND NOT lane.parked AND lane.due_at <= :now
        AND (lane.lease_until IS NULL OR lane.lease_until <= :now) AND lane.tenant = coalesce(:tenant, lane.tenant)
  )

-- rest_channel --
-- Has all workers leave a channel alone: twice as long with each failure in a row, and no shorter than it asked for; answers for how long. What others
-- say of it while it rests is the same failure once more.
INSERT INTO channel (name, rest_until, failures, since, reason)
VALUES (:name, :now + max(min(:longest, :base), :asked), 1, :now, :reason)
ON CONFLICT (name) DO UPDATE
SET rest_until = CASE
        WHEN channel.rest_until > :now THEN max(channel.rest_until, :now + :asked)
        ELSE :now + max(min(:longest, :base << min(channel.failures, 30)), :asked)
        END,
    failures = channel.failures + CASE WHEN channel.rest_until > :now THEN 0 ELSE 1 END,
    reason = excluded.reason, since = coalesce(channel.since, excluded.since)
RETURNING rest_until - :now

-- hasten_channel --
-- Whatever of a channel waits for another try is due now, unless a worker has it.
UPDATE lane SET due_at = :now, retry_at = NULL
WHERE channel = :name AND due_at IS NOT NULL AND NOT parked AND due_at > :now AND lease_until IS NULL

-- take_turn --
-- The next time at which a channel with a rate may deliver, having reserved `duration` from then on; answers how long to wait for it.
INSERT INTO channel (name, next_at) VALUES (:name, :now + :duration)
ON CONFLICT (name) DO UPDATE SET next_at = max(channel.next_at, :now) + :duration
RETURNING next_at - :duration - :now

-- held_lanes --
-- The places of those of these lanes, a JSON list of [tenant, type, id, fence], that are held under these fences until then at least.
SELECT given.key
FROM json_each(:lanes) AS given CROSS JOIN lane
WHERE lane.tenant = json_extract(given.value, '$[0]') AND lane.aggregatetype = json_extract(given.value, '$[1]')
  AND lane.aggregateid = json_extract(given.value, '$[2]') AND lane.fence = json_extract(given.value, '$[3]')
  AND lane.lease_until >= :until

-- blame_next --
-- Counts an attempt against the next row of a lane in which a worker died.
UPDATE outbox SET status = 'PENDING', attempts = attempts + 1, failure_reason = :reason
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND seq = :seq
