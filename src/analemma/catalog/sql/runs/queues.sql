-- add_lane --
-- That a queue is used with a priority.
INSERT INTO run_lane (tenant, queue, priority) VALUES (:tenant, :queue, :priority) ON CONFLICT DO NOTHING

-- queue_starts --
-- When the run began that this many others began after.
SELECT at FROM run_start WHERE tenant = :tenant AND queue = :queue AND seq = :seq

-- count_start --
-- One more run of a queue has begun.
UPDATE run_queue SET started = started + 1 WHERE tenant = :tenant AND name = :queue

-- drop_starts --
-- Those that the rate does not reach back to.
DELETE FROM run_start WHERE tenant = :tenant AND queue = :queue AND seq <= :seq

-- drop_queue --
-- Its limits. Runs of it go on without any.
DELETE FROM run_queue WHERE tenant = :tenant AND name = :queue

-- drop_lanes --
-- Priorities of queues that no run has: not even one that has failed and may be resumed. Each is a look into an index, however many runs there are.
DELETE FROM run_lane
WHERE tenant = :tenant
  AND (SELECT run.number FROM run WHERE run.tenant = run_lane.tenant AND run.queue = run_lane.queue AND run.queue <> ''
         AND run.priority = run_lane.priority AND run.status = 'PENDING' AND run.parent IS NULL
       ORDER BY run.due_at LIMIT 1) IS NULL
  AND (SELECT run.number FROM run WHERE run.tenant = run_lane.tenant AND run.queue = run_lane.queue AND run.queue <> ''
         AND run.priority = run_lane.priority AND (run.status <> 'PENDING' OR run.parent IS NOT NULL)
       ORDER BY run.due_at LIMIT 1) IS NULL

-- due_lanes --
-- Every queue and priority with when its first run became due that goes on, and its first that begins: one look into an index each, however many
-- wait; and the limits of the queue.
SELECT lane.tenant, lane.queue, lane.priority,
       (SELECT run.due_at FROM run
        WHERE run.tenant = lane.tenant AND run.queue = lane.queue AND run.queue <> '' AND run.priority = lane.priority
          AND (run.status <> 'PENDING' OR run.parent IS NOT NULL) AND run.due_at <= (SELECT analemma_now())
        ORDER BY run.due_at LIMIT 1),
       (SELECT run.due_at FROM run
        WHERE run.tenant = lane.tenant AND run.queue = lane.queue AND run.queue <> '' AND run.priority = lane.priority
          AND run.status = 'PENDING' AND run.parent IS NULL AND run.due_at <= (SELECT analemma_now())
        ORDER BY run.due_at LIMIT 1),
       limits.concurrency, limits.rate
FROM run_lane AS lane LEFT JOIN run_queue AS limits ON limits.tenant = lane.tenant AND limits.name = lane.queue
WHERE lane.tenant = coalesce(:tenant::integer, lane.tenant)

-- first_due --
-- When the first run of no queue became due.
SELECT min(due_at) FROM run WHERE queue = '' AND due_at <= (SELECT analemma_now()) AND tenant = coalesce(:tenant::integer, tenant)

-- hold_queue --
-- The limits of a queue, for one claim at a time; and what time it is.
SELECT concurrency, rate, period, started, analemma_now() FROM run_queue WHERE tenant = :tenant AND name = :queue FOR UPDATE  -- guard: queue.line.postgres

-- queue_held --
-- How many runs of a queue somebody works on. One whose lease is over has no place any more.
SELECT count(*) FROM run WHERE tenant = :tenant AND queue = :queue AND queue <> '' AND holder IS NOT NULL AND due_at > (SELECT analemma_now())  -- guard: queue.held

-- put_start --
-- When a run of a queue began.
INSERT INTO run_start (tenant, queue, seq, at) VALUES (:tenant, :queue, :seq, :at)

-- put_queue --
-- The limits of a queue, in the place of those that it had.
INSERT INTO run_queue (tenant, name, concurrency, rate, period, started, updated_at)
VALUES (:tenant, :queue, :concurrency, :rate, :period, 0, analemma_now())
ON CONFLICT (tenant, name) DO UPDATE
SET concurrency = excluded.concurrency, rate = excluded.rate, period = excluded.period, updated_at = excluded.updated_at

-- queues --
-- Every queue that has limits, or runs, with what waits in it and what is worked on.
SELECT names.name, limits.concurrency, limits.rate, (limits.period / 1000000.0)::float,
       (SELECT count(*) FROM run WHERE run.tenant = :tenant AND run.queue = names.name AND run.queue <> '' AND run.status = 'PENDING'
          AND run.due_at IS NOT NULL),
       (SELECT count(*) FROM run WHERE run.tenant = :tenant AND run.queue = names.name AND run.queue <> '' AND run.holder IS NOT NULL
          AND run.due_at > (SELECT analemma_now()))
FROM (SELECT name FROM run_queue WHERE tenant = :tenant UNION SELECT queue FROM run_lane WHERE tenant = :tenant) AS names
    LEFT JOIN run_queue AS limits ON limits.tenant = :tenant AND limits.name = names.name
ORDER BY names.name

-- hold_lanes --
-- No lane is added until the transaction ends, and whoever has added one has committed its run.
[postgres] LOCK TABLE run_lane IN SHARE ROW EXCLUSIVE MODE  -- guard: queue.tidied.postgres

-- schedule_rows [text] --
-- Schedules as values.
SELECT tenant, name, document, definition, revision, paused, next_at, look_at, last_at, error, created_at, updated_at FROM schedule

-- schedule --
-- One by its name.
include schedule_rows
WHERE tenant = :tenant AND name = :name

-- schedules --
-- All of a tenant.
include schedule_rows
WHERE tenant = :tenant ORDER BY name

-- drop_schedule --
-- No more ticks; what was begun goes on.
DELETE FROM schedule WHERE tenant = :tenant AND name = :name

-- add_schedule --
-- No row touched means that the name is taken.
INSERT INTO schedule (tenant, name, document, definition, revision, paused, next_at, look_at, created_at, updated_at)
SELECT :tenant, :name, :document, :definition, 1, 0, :next::bigint, :next::bigint, analemma_now(), analemma_now()
WHERE true ON CONFLICT DO NOTHING

-- replace_schedule --
-- Another definition of the same name; one that is paused stays so. No row touched means that it has ticked since it was seen, or is gone.
UPDATE schedule
SET document = :document, definition = :definition, revision = revision + 1, next_at = :next::bigint,
    look_at = CASE WHEN paused = 0 THEN :next::bigint END, error = NULL, updated_at = analemma_now()
-- guard: schedule.replaced.revision
WHERE tenant = :tenant AND name = :name AND revision = :revision AND coalesce(next_at, -1) = coalesce(:seen::bigint, -1)  -- guard: schedule.replaced

-- advance_schedule --
-- From one tick to the next. Compare-and-set: no row touched means that somebody else was first, or that it is paused or another by now.
UPDATE schedule
SET next_at = :next::bigint, look_at = :next::bigint, last_at = coalesce(:tick::bigint, last_at), error = NULL, updated_at = analemma_now()
-- guard: schedule.revision
-- guard: schedule.paused
WHERE tenant = :tenant AND name = :name AND revision = :revision AND next_at = :seen AND paused = 0  -- guard: schedule.seen

-- postpone_schedule --
-- A tick that could not be begun, and why; it is tried again later.
UPDATE schedule SET look_at = :look::bigint, error = :error::text, updated_at = analemma_now()
-- guard: schedule.postponed.revision
WHERE tenant = :tenant AND name = :name AND revision = :revision AND next_at = :seen AND paused = 0  -- guard: schedule.postponed

-- pause_schedule --
-- No ticks until it is resumed.
UPDATE schedule SET paused = 1, look_at = NULL, updated_at = analemma_now() WHERE tenant = :tenant AND name = :name

-- resume_schedule --
-- Ticks from now on; those meanwhile were not missed.
UPDATE schedule SET paused = 0, next_at = :next::bigint, look_at = :next::bigint, error = NULL, updated_at = analemma_now()
WHERE tenant = :tenant AND name = :name AND paused = 1

-- due_schedules --
-- Of all tenants, or one: what has a tick by now.
include schedule_rows
WHERE look_at <= :now AND tenant = coalesce(:tenant::integer, tenant) ORDER BY look_at LIMIT :limit
