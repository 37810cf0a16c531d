-- run_columns [text] --
-- A run as a value.
number, execution, owner, workflow, branch, name, document, born, head, status, position, waiting, error, options, incarnation, fence,
holder, due_at, deadline, idempotency_key, fingerprint, queue, priority, created_at, updated_at, ended_at, parent, begun_at

-- run_rows [text] --
-- Runs as values.
SELECT
include run_columns
FROM run

-- run --
-- One run by its execution.
include run_rows
WHERE tenant = :tenant AND execution = :execution

-- run_of_number --
-- One run by its number.
include run_rows
WHERE number = :number

-- runs --
-- A page of runs, newest first. What is empty is not asked for.
include run_rows
WHERE tenant = :tenant AND number < :before AND (:status = '' OR status = :status) AND (:workflow = '' OR workflow = :workflow)
  AND (:owner = '' OR owner = :owner) AND (:name = '' OR name = :name)
ORDER BY number DESC LIMIT :limit

-- newest_run_on --
-- The run that was last begun on a branch with a document.
include run_rows
WHERE tenant = :tenant AND workflow = :workflow AND owner = :owner AND branch = :branch AND document = :document
ORDER BY number DESC LIMIT 1

-- hold_place --
-- A run stays where it stands until what is injected before it is there. No row touched means that it has moved.
UPDATE run SET updated_at = updated_at WHERE number = :run AND fence = :fence AND status = :status AND position = :position  -- guard: run.place

-- run_standing --
-- Whether whoever has this fence may go on.
SELECT status, fence FROM run WHERE number = :number

-- run_segments --
-- What was executed in one incarnation, in order, from a place on.
SELECT incarnation, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at
FROM run_segment WHERE run = :run AND incarnation = :incarnation AND seq > :after
ORDER BY seq LIMIT :limit

-- take_over_segments --
-- What one incarnation executed before a place, for the next.
INSERT INTO run_segment
    (run, incarnation, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at)
SELECT run, :next, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at
FROM run_segment WHERE run = :run AND incarnation = :incarnation AND seq < :below

-- effects --
-- The effects of one execution of a segment, by the beginning of their keys.
SELECT key, state, result, body, attempts FROM effect
WHERE run = :run AND incarnation = :incarnation AND key >= :low AND key < :high

-- running_executions --
-- Executions on a workflow whose runs are not over: their versions are kept.
SELECT execution FROM run WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND ended_at IS NULL

-- resumable_heads --
-- What runs on a workflow that failed stand on, and go on from when they are resumed.
SELECT head FROM run WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND status = 'FAILED'

-- effect_roots --
-- What a collector must mark: the results of the effects of some runs.
SELECT page.number, effect.result
FROM (SELECT number FROM run WHERE tenant = :tenant AND number > :after ORDER BY number LIMIT :limit) AS page
    LEFT JOIN effect ON effect.run = page.number AND effect.result IS NOT NULL
ORDER BY page.number

-- task_roots --
-- What a collector must mark: the results of the tasks of some runs.
SELECT page.number, run_task.root
FROM (SELECT number FROM run WHERE tenant = :tenant AND number > :after ORDER BY number LIMIT :limit) AS page
    LEFT JOIN run_task ON run_task.run = page.number AND run_task.root IS NOT NULL
ORDER BY page.number

-- ended_runs --
-- Runs that ended before a time, without those that another run still needs to go on.
SELECT number FROM run
WHERE tenant = :tenant AND ended_at < :before
  AND NOT EXISTS (SELECT 1 FROM run AS above WHERE above.number = run.parent AND above.status NOT IN ('COMPLETED', 'CANCELLED'))
ORDER BY ended_at LIMIT :limit

-- forget_runs --
-- Those that ended before a time, unless they were resumed meanwhile.
DELETE FROM run WHERE number = ANY (:numbers::bigint[]) AND ended_at < :before RETURNING number  -- guard: run.forgotten

-- forget_run_segments --
-- With their runs.
DELETE FROM run_segment WHERE run = ANY (:numbers::bigint[])

-- forget_run_tasks --
-- With their runs.
DELETE FROM run_task WHERE run = ANY (:numbers::bigint[])

-- forget_effects --
-- With their runs.
DELETE FROM effect WHERE run = ANY (:numbers::bigint[])

-- run_tasks --
-- What is known of the tasks of one execution of a segment, from an item on.
SELECT item, status, root, error, attempts FROM run_task
WHERE run = :run AND incarnation = :incarnation AND seq = :seq AND item > :after
ORDER BY item LIMIT :limit

-- put_run_task --
-- What a task came to. The first time that it was done counts.
INSERT INTO run_task (run, incarnation, seq, item, status, root, error, attempts)
VALUES (:run, :incarnation, :seq, :item, :status, :root, :error, :attempts)
ON CONFLICT (run, incarnation, seq, item) DO UPDATE
SET status = excluded.status, root = excluded.root, error = excluded.error, attempts = run_task.attempts + excluded.attempts
WHERE run_task.status <> 'DONE'

-- last_run_segment --
-- Where a segment was last executed before a place.
SELECT max(seq) FROM run_segment WHERE run = :run AND incarnation = :incarnation AND segment = :segment AND seq < :before

-- run_children --
-- The runs that one has begun and that go on, with the keys that say which of its incarnations did.
SELECT number, idempotency_key FROM run WHERE parent = :run AND ended_at IS NULL ORDER BY number

-- add_run --
-- A run, beside the commit of the version that it begins with. No row touched means that its execution or its key is taken. One that is left to
-- others has all of its time when one of them takes it.
INSERT INTO run (tenant, execution, owner, workflow, branch, name, document, born, head, status, position, options, incarnation, fence, holder,
                 due_at, deadline, time_limit, begun_at, idempotency_key, fingerprint, queue, priority, created_at, updated_at, parent)
SELECT :tenant, :execution, :owner, :workflow, :branch, :name, :document, :manifest, :manifest, :status, :position, :options, :incarnation, 1,
       :holder::text, analemma_now() + :due_in,
       CASE WHEN :status <> 'PENDING' THEN analemma_now() + :limit::bigint END, :limit::bigint, CASE WHEN :status <> 'PENDING' THEN analemma_now() END, :idempotency_key::text, :fingerprint, :queue, :priority,
       analemma_now(), analemma_now(), :parent::bigint
WHERE true ON CONFLICT DO NOTHING

-- moved_run [text] --
-- Where a run stands from now on.
UPDATE run
SET position = :position, head = :head, status = :status, waiting = :waiting::text, error = :error::text, incarnation = :incarnation,
    fence = fence + CASE WHEN :raised THEN 1 ELSE 0 END, holder = CASE WHEN :kept THEN holder END,
    due_at = CASE WHEN :kept AND :due_in::bigint IS NULL THEN due_at ELSE analemma_now() + :due_in::bigint END,
    updated_at = analemma_now(), ended_at = CASE WHEN :status IN ('COMPLETED', 'FAILED', 'CANCELLED') THEN analemma_now() END

-- advance_run --
-- Where a run stands after a segment, and what the segment came to; tried again, in the place of what it came to before. Compare-and-set on the fence:
-- the run may be somebody else's, or was cancelled, and then nothing that was to go with it may stay.
(run bigint, fence bigint, position text, head bytea, status text, from_status text, incarnation bigint, waiting text, error text, kept boolean,
 raised boolean, due_in bigint, seq bigint, segment text, place bigint, iteration bigint, before text, segment_status text, input bytea,
 output bytea, attempts bigint, segment_error text, took bigint)

include moved_run
-- guard: run.status
WHERE number = :run AND fence = :fence AND status IN ('RUNNING', :from_status)  -- guard: run.fence
=> 1 or fenced_out;

INSERT INTO run_segment
    (run, incarnation, seq, segment, place, iteration, position, status, input, output, attempts, error, started_at, ended_at)
VALUES (:run, :incarnation, :seq, :segment, :place, :iteration, :before, :segment_status, :input, :output, :attempts, :segment_error,
        analemma_now() - :took, analemma_now())
ON CONFLICT (run, incarnation, seq) DO UPDATE
SET segment = excluded.segment, place = excluded.place, iteration = excluded.iteration, position = excluded.position, status = excluded.status,
    input = excluded.input, output = excluded.output, attempts = run_segment.attempts + excluded.attempts, error = excluded.error,
    ended_at = excluded.ended_at;

-- commit_segment --
-- A version that a segment of a run made, where the run stands, and what the segment came to. The locks of a commit in their order, the run's behind
-- all others.
()

often one heads, blocks, one versions, one records;

include commit_versions;
include advance_run;

-- move_run --
-- The same without a segment: a run is cancelled, begins again, or waits for its next try.
include moved_run
WHERE number = :run AND fence = :fence AND status IN ('RUNNING', :from_status)  -- guard: run.moved

-- restart_deadline --
-- The run as a whole has so long from now on; `late`: only if its time is over.
UPDATE run SET deadline = analemma_now() + :limit
WHERE number = :run AND deadline IS NOT NULL AND (:late = 0 OR deadline <= analemma_now())

-- claim_run --
-- Take a run: one that nobody holds, whose holder's lease is over, or whose holder is known to be gone. `failed`: also one that failed.
UPDATE run
SET fence = fence + 1, holder = :holder, due_at = analemma_now() + :lease, status = 'RUNNING', error = NULL, ended_at = NULL,
    begun_at = coalesce(begun_at, analemma_now()), deadline = coalesce(deadline, analemma_now() + time_limit), updated_at = analemma_now()
WHERE number = :run AND (status IN ('PENDING', 'RUNNING') OR (status = 'FAILED' AND :failed = 1))
  AND (holder IS NULL OR due_at <= analemma_now() OR holder = :gone::text)  -- guard: run.claimed
RETURNING
include run_columns

-- take_run [text] --
-- Whoever takes a run is its holder for so long.
UPDATE run
SET fence = fence + 1, holder = :holder, due_at = analemma_now() + :lease,
    status = CASE WHEN status = 'PENDING' THEN 'RUNNING' ELSE status END, begun_at = coalesce(begun_at, analemma_now()),
    deadline = coalesce(deadline, analemma_now() + time_limit), updated_at = analemma_now()

-- claim_due_runs --
-- Take a run of no queue that somebody has to look at: one that nobody has begun, whose holder's lease is over, whose time to go on or to decide has come.
include take_run
WHERE number IN (
    SELECT number FROM run
    -- As a query of its own the time is asked for once, and is a condition of the index.
    WHERE due_at <= (SELECT analemma_now()) AND tenant = coalesce(:tenant::integer, tenant)
      AND queue = '' AND status IN ('PENDING', 'RUNNING', 'WAITING_HUMAN')
    ORDER BY due_at LIMIT 1
    FOR UPDATE SKIP LOCKED  -- guard: run.due.postgres
)
RETURNING tenant,
include run_columns

-- due_in_lane [text] --
-- The run of a lane that is due the longest.
    SELECT number FROM run
    WHERE tenant = :tenant AND queue = :queue AND queue <> '' AND priority = :priority AND due_at <= (SELECT analemma_now())

-- claim_begun --
-- Take the run of a lane that is due the longest of those that have begun, or that one which has begun waits for.
include take_run
WHERE number IN (
include due_in_lane
      AND (status <> 'PENDING' OR parent IS NOT NULL)
    ORDER BY due_at, number LIMIT 1
    FOR UPDATE SKIP LOCKED  -- guard: queue.begun.postgres
)
RETURNING
include run_columns

-- claim_queued --
-- Take the run of a lane that has not begun and is due the longest.
include take_run
WHERE number IN (
include due_in_lane
      AND status = 'PENDING' AND parent IS NULL
    ORDER BY due_at, number LIMIT 1
    FOR UPDATE SKIP LOCKED  -- guard: queue.new.postgres
)
RETURNING
include run_columns

-- renew_run --
-- No row touched means that it is somebody else's, or was cancelled.
UPDATE run SET due_at = analemma_now() + :lease
-- guard: run.renewed.holder
WHERE number = :run AND fence = :fence AND holder IS NOT NULL AND status = 'RUNNING'  -- guard: run.renewed

-- release_run --
-- Give it back as it is, for whoever looks next.
UPDATE run SET holder = NULL, due_at = analemma_now() + :due_in
WHERE number = :run AND fence = :fence AND holder IS NOT NULL  -- guard: run.released

-- begin_effect --
-- Somebody is about to do it, by whoever has the fence. No row touched means that the run is somebody else's, or was cancelled, or that it was
-- done: what was done stays done. Answers which attempt it is.
INSERT INTO effect (run, incarnation, key, state, attempts, begun_at)
SELECT :run, :incarnation, :key, 'intent', 1, analemma_now()
-- guard: effect.begun.lock.postgres
WHERE true AND EXISTS (SELECT 1 FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING' FOR SHARE)  -- guard: effect.begun
ON CONFLICT (run, incarnation, key) DO UPDATE
SET state = 'intent', attempts = effect.attempts + 1 WHERE effect.state <> 'done'  -- guard: effect.done
RETURNING attempts

-- end_effect --
-- What it came to, by whoever has the fence. That it did not happen only the last who began can say: another may be at it.
UPDATE effect SET state = :state, result = :result::bytea, body = :body::bytea,
    ended_at = analemma_now()
WHERE run = :run AND incarnation = :incarnation AND key = :key AND state <> 'done'
  AND (:state::text = 'done' OR attempts = :attempt)
[postgres]   -- guard: effect.ended.lock.postgres
  AND EXISTS (SELECT 1 FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING' FOR SHARE)  -- guard: effect.ended
[postgres] RETURNING 1

-- put_effect --
-- One that needs no beginning, in the place of whatever is known of it.
INSERT INTO effect (run, incarnation, key, state, result, body, attempts, begun_at, ended_at)
SELECT :run, :incarnation, :key, :state, :result::bytea, :body::bytea, 1, analemma_now(), analemma_now()
[postgres] -- guard: effect.noted.lock.postgres
WHERE true AND EXISTS (SELECT 1 FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING' FOR SHARE)  -- guard: effect.noted
ON CONFLICT (run, incarnation, key) DO UPDATE
SET state = excluded.state, result = excluded.result, body = excluded.body, ended_at = excluded.ended_at WHERE effect.state <> 'done'
[postgres] RETURNING 1

-- hold_run --
-- No row means that the run is somebody else's, or was cancelled; a row, that it stays ours until the transaction ends.
SELECT number FROM run WHERE number = :run AND fence = :fence AND status = 'RUNNING' FOR SHARE  -- guard: run.held

-- hold_parent --
-- A run that is about to begin another stays its holder's until that is there. No row touched means that it is somebody else's, or was cancelled.
-- guard: run.parent.lock.postgres
UPDATE run SET updated_at = updated_at WHERE number = :run AND fence = :fence AND status = 'RUNNING'  -- guard: run.parent

-- wake_parent --
-- The run that waits for one that has ended, beside its end. Before it in every transaction: whoever waits is locked before whom it waits for,
-- also one that does not wait yet: it begins to when this has committed, and then sees the end.
UPDATE run
SET due_at = CASE WHEN holder IS NULL AND status = 'RUNNING' AND waiting LIKE '{"kind":"subflow"%' THEN analemma_now() ELSE due_at END
WHERE number = :run

-- look_at_child --
-- A run that begins to wait for another, which may have ended since it was looked at.
UPDATE run SET due_at = analemma_now()
WHERE number = :run AND EXISTS (SELECT 1 FROM run AS child WHERE child.number = :child AND child.ended_at IS NOT NULL)  -- guard: run.child

-- cancel_children --
-- The runs that one has begun and waits for, when it is cancelled; up to a number, which those that are begun from now on are above.
UPDATE run
SET status = 'CANCELLED', fence = fence + 1, holder = NULL, due_at = NULL, waiting = NULL, error = NULL,
    updated_at = analemma_now(), ended_at = analemma_now()
WHERE parent = :run AND number <= :last AND ended_at IS NULL
RETURNING number, owner, workflow, branch

-- cancelled_parents --
-- The runs of a branch that were cancelled, and of which a run that they began goes on.
SELECT DISTINCT run.number
FROM run JOIN run AS child ON child.parent = run.number AND child.ended_at IS NULL
WHERE run.tenant = :tenant AND run.owner = :owner AND run.workflow = :workflow AND run.branch = :branch AND run.status = 'CANCELLED'
ORDER BY run.number

-- run_of_key --
-- The run that was born under an idempotency key. The key counts for as long as the run goes on, keys are kept after its end, its first
-- version is there, or it is that by which a run knows one that it began.
include run_rows
WHERE tenant = :tenant AND idempotency_key = :key
  AND (ended_at IS NULL OR ended_at > analemma_now() - :keep OR parent IS NOT NULL
       OR EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = run.tenant AND manifest.id = run.born))

-- drop_old_run_key --
-- A key that counts no more is in the way of no new run.
UPDATE run SET idempotency_key = NULL
WHERE tenant = :tenant AND idempotency_key = :key AND ended_at <= analemma_now() - :keep AND parent IS NULL
  AND NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = run.tenant AND manifest.id = run.born)
