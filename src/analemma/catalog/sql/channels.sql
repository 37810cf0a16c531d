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
       CAST(sum(CASE WHEN lease_until > :now AND NOT parked THEN 1 ELSE 0 END) AS bigint),
       CAST(sum(CASE WHEN retry_at IS NOT NULL AND lease_until IS NULL AND NOT parked THEN 1 ELSE 0 END) AS bigint),
       CAST(sum(CASE WHEN parked THEN 1 ELSE 0 END) AS bigint), min(CASE WHEN parked THEN NULL ELSE due_at END)
FROM lane
WHERE channel > '' AND (parked OR due_at IS NOT NULL) AND tenant = coalesce(:tenant, tenant)
GROUP BY channel
