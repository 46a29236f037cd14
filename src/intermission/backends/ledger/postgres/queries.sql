-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

-- name: begin_bounds
-- A client that went away without a word must not keep what it locked.
SELECT set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('lock_timeout', '5s', true);

-- name: begin_token
-- The row says that this change is being made: if the connection is lost and it is made again, it
-- waits here for the first try to end, and finds the row if that committed.
WITH last AS (DELETE FROM intermission.changes WHERE token = :previous)
INSERT INTO intermission.changes (token, at_s)
VALUES (:token, extract(epoch FROM clock_timestamp()))
ON CONFLICT DO NOTHING
RETURNING at_s;

-- name: commit
COMMIT;

-- name: now_s
-- As a query of its own, so that it is asked once and an index can be searched for it.
(SELECT coalesce(:now_s, extract(epoch FROM clock_timestamp())::double precision))

-- name: now_ms
(SELECT coalesce(:now_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))

-- name: claimable
t.state IN ('pending', 'retrying', 'abandoned', 'corrupt')

-- name: held
t.state IN ('leased', 'running')

-- name: stopped
t.state IN ('failed', 'cancelled')

-- name: any_of_step
-- In the order of the indices of states, so that the first is looked up in one of these.
ORDER BY t.id + 0 LIMIT 1

-- name: any_of_job
ORDER BY t.step, t.id + 0 LIMIT 1

-- name: lock_jobs_of_tasks
SELECT id, revision FROM intermission.jobs
WHERE id = ANY(ARRAY(
    SELECT DISTINCT job_id FROM intermission.tasks WHERE id = ANY(:ids::bigint[])))
ORDER BY id FOR NO KEY UPDATE;

-- name: insert_tasks
-- A task that is there under the same key stays; under another key it starts afresh.
INSERT INTO intermission.tasks AS t (job_id, step, idx, key, chunk, state, updated_ms)
SELECT :job, *, :now_ms
FROM ROWS(:rows, step integer, idx integer, key text, chunk text, state text) AS n
ON CONFLICT (job_id, step, idx) DO UPDATE SET {replaced};

-- name: tasks_in_spans
-- Another answer than before: a chunk came or is another.
SELECT w.step, t.n, t.fences FROM ROWS(:spans, step integer, first integer, last integer) AS w
CROSS JOIN LATERAL (
    SELECT count(*) AS n, coalesce(sum(fence), 0) AS fences FROM intermission.tasks
    WHERE job_id = :job AND step = w.step AND idx BETWEEN w.first AND w.last
) AS t;

-- name: not_refused
(t.refusals = 0 OR NOT EXISTS (
    SELECT 1 FROM intermission.refusals AS r
    WHERE r.task_id = t.id AND r.host = :host AND r.until_s > {now_s}))

-- name: any_due
-- The first of each is looked up, whatever the planner believes about the others.
coalesce((SELECT min(due_s) FROM intermission.ready WHERE parked = 1) <= {now_s}, false)
OR coalesce((SELECT min(begin_ms) FROM intermission.ready WHERE parked = 2) <= {now_ms}, false)

-- name: is_any_due
SELECT {any_due};

-- name: unpark
-- One that another claim has is unparked by it.
WITH due AS MATERIALIZED (
    SELECT job_id, step FROM intermission.ready
    WHERE parked = 1 AND due_s <= :now_s OR parked = 2 AND begin_ms <= :now_ms
    ORDER BY job_id + 0, step FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE intermission.ready AS r SET parked = 0 FROM due
WHERE r.job_id = due.job_id AND r.step = due.step;

-- name: found
j.id, j.revision, j.state, r.step, r.class, r.is_waiting,
    EXISTS (SELECT 1 FROM intermission.limits),
    CASE WHEN j.id <> ALL(:known::bigint[]) THEN j.spec END, {any_due}

-- name: fitting_classes
-- What this worker can run, and nobody paused.
(c.needs IS NULL OR c.needs = ANY(:offers::text[]))
  AND (:runs::text[] IS NULL OR c.code = ANY(:runs::text[]))
  AND c.id <> ALL(:without::integer[]) AND NOT EXISTS (
    SELECT 1 FROM intermission.limits AS l WHERE l.paused AND l.name IN
    ('pipeline:' || c.pipeline, 'label:' || c.needs, 'label:' || c.prefers))

-- name: openings
-- Ready steps in the order in which they are served: of each class that has any, one looked up
-- after the other, the first ones, and of all these the first. What it costs depends on what there
-- is, not on how many jobs or classes there are.
WITH RECURSIVE busy (id) AS (
    (SELECT class FROM intermission.ready WHERE parked = 0 ORDER BY class LIMIT 1)
    UNION ALL
    SELECT (SELECT r.class FROM intermission.ready AS r WHERE r.parked = 0 AND r.class > b.id
            ORDER BY r.class LIMIT 1)
    FROM busy AS b WHERE b.id IS NOT NULL
)
SELECT {found}
FROM (
    SELECT r.*, c.prefers IS NOT NULL AND c.prefers <> ALL(:offers::text[]) AS is_waiting
    FROM busy AS b
    CROSS JOIN LATERAL (SELECT * FROM intermission.classes WHERE id = b.id LIMIT 1) AS c
    CROSS JOIN LATERAL (
        SELECT * FROM intermission.ready AS r
        WHERE r.class = c.id AND r.parked = 0 AND r.job_id <> ALL(:tried::bigint[])
        ORDER BY r.priority DESC, r.turn, r.job_id LIMIT :count
    ) AS r
    WHERE {fitting_classes}
    ORDER BY r.priority DESC, r.turn, r.job_id LIMIT :count
) AS r
CROSS JOIN LATERAL (SELECT * FROM intermission.jobs WHERE id = r.job_id LIMIT 1) AS j
ORDER BY r.priority DESC, r.turn, r.job_id, r.step;

-- name: openings_of_jobs
SELECT {found}
FROM (
    SELECT r.*, c.prefers IS NOT NULL AND c.prefers <> ALL(:offers::text[]) AS is_waiting
    FROM unnest(:keys::text[]) AS k (key)
    CROSS JOIN LATERAL (SELECT * FROM intermission.jobs WHERE key = k.key LIMIT 1) AS j
    CROSS JOIN LATERAL (
        SELECT * FROM intermission.ready WHERE job_id = j.id AND parked = 0 OFFSET 0
    ) AS r
    CROSS JOIN LATERAL (SELECT * FROM intermission.classes WHERE id = r.class LIMIT 1) AS c
    WHERE j.id <> ALL(:tried::bigint[]) AND {fitting_classes}
    ORDER BY r.priority DESC, r.turn, r.job_id LIMIT :count
) AS r
CROSS JOIN LATERAL (SELECT * FROM intermission.jobs WHERE id = r.job_id LIMIT 1) AS j
ORDER BY r.priority DESC, r.turn, r.job_id, r.step;

-- name: lock_ready
-- Whoever makes a task claimable holds its step's row: those are left to the next claim.
SELECT job_id, step FROM intermission.ready
WHERE job_id = ANY(:places_0::bigint[])
  AND (job_id, step) IN (SELECT * FROM ROWS(:places, job_id bigint, step integer) AS w)
ORDER BY job_id, step FOR UPDATE SKIP LOCKED;

-- name: close_ready
-- A step that has nothing goes; where the time of a retry has not come, it waits for that. Else a
-- limit, a preference or a refusal is in the way, and others may have it.
WITH looked AS MATERIALIZED (
    SELECT w.job_id, w.step, (
        SELECT min(t.ready_s) FROM intermission.tasks AS t
        WHERE t.job_id = w.job_id AND t.step = w.step
          AND {claimable}
    ) AS due_s
    FROM ROWS(:places, job_id bigint, step integer) AS w
), gone AS (
    DELETE FROM intermission.ready AS r USING looked AS l
    WHERE r.job_id = ANY(:places_0::bigint[])
      AND r.job_id = l.job_id AND r.step = l.step AND l.due_s IS NULL
)
UPDATE intermission.ready AS r SET parked = 1, due_s = l.due_s FROM looked AS l
WHERE r.job_id = ANY(:places_0::bigint[])
  AND r.job_id = l.job_id AND r.step = l.step AND l.due_s > :now_s;

-- name: open_steps
SELECT intermission.open_step(s.job_id, s.no) FROM intermission.steps AS s
WHERE s.job_id = :job AND EXISTS (
    SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = s.job_id AND t.step = s.no
    AND {claimable});

-- name: lock_bounds
-- A step's bound is counted and used up by one claim at a time. In one order, as all locks.
SELECT pg_advisory_xact_lock(18766, name) FROM (
    SELECT DISTINCT hashtext(name) AS name FROM unnest(:names::text[]) AS name ORDER BY 1
) AS names;

-- name: picked
-- Jobs are visited in their order until there is enough; of each, the oldest tasks of its open
-- steps. A task that another claim has locked is passed by.
SELECT c.id, c.step FROM unnest(:jobs::bigint[]) AS o (job_id)
CROSS JOIN LATERAL (
    SELECT t.id, t.step
    FROM ROWS(:requests, job_id bigint, step integer, room integer, since_ms bigint) AS s
    CROSS JOIN LATERAL (
        SELECT t.id, t.step FROM intermission.tasks AS t
        WHERE t.job_id = s.job_id AND t.step = s.step AND t.ready_s <= :now_s
          AND t.updated_ms <= s.since_ms
          AND {claimable} AND {not_refused}
        ORDER BY t.id + 0 LIMIT s.room FOR NO KEY UPDATE SKIP LOCKED
    ) AS t
    WHERE s.job_id = o.job_id ORDER BY t.id LIMIT :count
) AS c
LIMIT :count

-- name: pick
{picked};

-- name: leased
UPDATE intermission.tasks
SET state = 'leased', fence = fence + 1, begun = :begin, worker = :worker,
    lease_s = :lease_s, token = NULL, progress = 0, started_ms = :now_ms, ended_ms = NULL,
    updated_ms = :now_ms

-- name: claim
WITH picked AS MATERIALIZED (
{picked}
)
{leased}
WHERE id = ANY(ARRAY(SELECT id FROM picked))
RETURNING job_id, id, fence, attempts + 1, step, idx, key, chunk, lost;

-- name: claim_picked
{leased}
WHERE id = ANY(:ids::bigint[])
RETURNING job_id, id, fence, attempts + 1, step, idx, key, chunk, lost;

-- name: take_turns
-- Counted by events, of which each of these jobs has just made one at least. Where two claims of
-- one job meet, the word of the first is as good as that of both. Some have only begun.
WITH running AS (
    UPDATE intermission.jobs SET state = 'running', updated_ms = :now_ms
    WHERE id = ANY(:starting::bigint[]) AND state IN ('pending', 'draining')
), free AS MATERIALIZED (
    SELECT job_id FROM intermission.turns WHERE job_id = ANY(:jobs::bigint[])
    ORDER BY job_id FOR NO KEY UPDATE SKIP LOCKED
), turned AS (
    UPDATE intermission.turns AS q
    SET turn = (SELECT last_value FROM intermission.events_seq_seq)
        - cardinality(:jobs::bigint[]) + o.rank
    FROM free, unnest(:jobs::bigint[]) WITH ORDINALITY AS o (job_id, rank)
    WHERE q.job_id = ANY(:jobs::bigint[]) AND q.job_id = free.job_id AND q.job_id = o.job_id
    RETURNING q.job_id, q.turn
), emptied AS MATERIALIZED (
    SELECT * FROM ROWS(:emptied, job_id bigint, step integer) AS e
), closed AS (
    DELETE FROM intermission.ready
    WHERE job_id = ANY(:jobs::bigint[]) AND (job_id, step) IN (SELECT job_id, step FROM emptied)
), open AS MATERIALIZED (
    SELECT job_id, step FROM intermission.ready AS r WHERE job_id = ANY(:jobs::bigint[])
      AND NOT EXISTS (SELECT 1 FROM emptied AS e WHERE e.job_id = r.job_id AND e.step = r.step)
    ORDER BY job_id, step FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE intermission.ready AS r SET turn = turned.turn FROM turned, open
WHERE r.job_id = ANY(:jobs::bigint[])
  AND r.job_id = turned.job_id AND r.job_id = open.job_id AND r.step = open.step;

-- name: tell_progress
-- After `renew`, which has announced the events of its transaction. A clock that was set back
-- keeps nobody silent.
WITH told AS (
    UPDATE intermission.tasks SET told = round(progress * 100), told_ms = :now_ms
    WHERE id = ANY(:ids::bigint[]) AND state = 'running'
      AND round(progress * 100) NOT IN (0, coalesce(told, 0))
      AND coalesce(told_ms, 0) NOT BETWEEN :now_ms - :every_ms + 1 AND :now_ms
    RETURNING id, job_id, step, fence, worker, progress
)
INSERT INTO intermission.events
    (at_ms, job_id, task_id, step, was, now, fence, worker, progress)
SELECT :now_ms, job_id, id, step, 'running', 'running', fence, worker, progress
FROM told ORDER BY id;

-- name: complete
WITH ended AS MATERIALIZED (
    SELECT * FROM ROWS(:done, id bigint, fence bigint, result text, receipt text, files text,
        adopted boolean, key text, by_receipt boolean) AS e
), locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks WHERE id = ANY(:done_0::bigint[])
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE intermission.tasks AS t
SET result = e.result, receipt = e.receipt, files = e.files, adopted = e.adopted, {done}
FROM ended AS e
WHERE t.id = e.id AND t.id = ANY(ARRAY(SELECT id FROM locked)) AND t.fence = e.fence
  AND t.key = coalesce(e.key, t.key) AND CASE WHEN e.by_receipt
    THEN {claimable} ELSE t.state IN ('leased', 'running', 'abandoned') END
RETURNING t.id, t.fence, t.job_id, t.step, t.idx;

-- name: unblock
-- Place by place, along what is blocked there, whatever the planner believes: a plan that was made
-- beside few tasks would look at all that are blocked, of every job.
UPDATE intermission.tasks SET state = 'pending', ready_s = 0, updated_ms = :now_ms
WHERE id = ANY(ARRAY(
    SELECT w.id FROM ROWS(:places, job bigint, no integer, first integer, last integer) AS p
    CROSS JOIN LATERAL (
        SELECT w.id, w.job_id, w.step, w.idx FROM intermission.tasks AS w
        WHERE w.job_id = p.job AND w.step = p.no AND w.idx BETWEEN p.first AND p.last
          AND w.state = 'blocked' OFFSET 0
    ) AS w
    WHERE NOT ({waits})))
  AND state || '' = 'blocked'
RETURNING id;

-- name: unsettled
-- Active jobs that were left behind: a task of theirs could start or be claimed, or nothing is left
-- to do. Of a step's blocked tasks the first is looked at. All wait for the same, except chunk by
-- chunk: and there, one that was missed becomes the first once those before it are done.
SELECT j.id FROM intermission.jobs AS j
WHERE j.id = ANY(:jobs::bigint[]) AND j.state IN ('pending', 'running', 'draining') AND (
    NOT ({unfinished})
    OR (SELECT 1 FROM intermission.steps AS s
        CROSS JOIN LATERAL (
            SELECT b.job_id, b.step, b.idx FROM intermission.tasks AS b
            WHERE b.job_id = j.id AND b.step = s.no AND b.state = 'blocked'
            ORDER BY b.idx LIMIT 1
        ) AS w
        WHERE s.job_id = j.id AND NOT ({waits})
        LIMIT 1) IS NOT NULL
    OR (SELECT 1 FROM intermission.steps AS s
        CROSS JOIN LATERAL (
            SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = j.id AND t.step = s.no
            AND {claimable} {any_of_step}
        ) AS claimable
        WHERE s.job_id = j.id AND NOT EXISTS (
            SELECT 1 FROM intermission.ready AS r WHERE r.job_id = j.id AND r.step = s.no)
        LIMIT 1) IS NOT NULL);

-- name: lock_claimable
-- Waits for claims under way, and keeps others from starting.
SELECT count(*) FROM (
    SELECT 1 FROM intermission.tasks
    WHERE job_id = :job AND state IN ('pending', 'retrying', 'abandoned', 'corrupt')
    ORDER BY id + 0 FOR NO KEY UPDATE
) AS locked;

-- name: any_held
SELECT (SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = :job AND {held} {any_of_job})
IS NOT NULL;

-- name: forget
WITH gone AS (DELETE FROM intermission.tasks WHERE job_id = :job)
DELETE FROM intermission.jobs WHERE id = :job;

-- name: forget_history
-- After the tasks, which are still counted as they go.
WITH gone AS (DELETE FROM intermission.counts WHERE job_id = :job)
DELETE FROM intermission.events WHERE job_id = :job;

-- name: fold_counts
-- Many small changes become one row per step and state. Whoever holds the job's row may do it:
-- changes that others are adding meanwhile are not seen here, and stay.
WITH gone AS (
    DELETE FROM intermission.counts WHERE job_id = ANY(:jobs::bigint[])
    RETURNING job_id, step, state, n
)
INSERT INTO intermission.counts (job_id, step, state, n)
SELECT job_id, step, state, sum(n) FROM gone GROUP BY job_id, step, state HAVING sum(n) <> 0;

-- name: unfolded_jobs
SELECT job_id FROM intermission.counts WHERE job_id = ANY(:jobs::bigint[])
GROUP BY job_id HAVING count(*) > :most;

-- name: forget_changes
DELETE FROM intermission.changes WHERE at_s < extract(epoch FROM clock_timestamp()) - :age_s;

-- name: job_columns
j.id, j.revision, j.state, j.created_ms, j.updated_ms, j.reason, (
    SELECT json_agg(json_build_array(c.step, c.state, c.n) ORDER BY c.step)::text FROM (
        SELECT step, state, sum(n) AS n FROM intermission.counts
        WHERE job_id = j.id GROUP BY step, state HAVING sum(n) > 0
    ) AS c)

-- name: jobs_in_states
SELECT {job_columns} FROM intermission.jobs AS j WHERE j.id = ANY(ARRAY(
    SELECT found.id FROM unnest(:states::text[]) AS wanted (state), LATERAL (
        SELECT id FROM intermission.jobs
        WHERE state || '' = wanted.state AND id + 0 < :before ORDER BY id + 0 DESC LIMIT :limit
    ) AS found ORDER BY found.id DESC LIMIT :limit))
ORDER BY j.id DESC;

-- name: jobs_of_pipeline
SELECT {job_columns} FROM intermission.jobs AS j WHERE j.id = ANY(ARRAY(
    SELECT found.id FROM unnest(:states::text[]) AS wanted (state), LATERAL (
        SELECT id FROM intermission.jobs
        WHERE pipeline || '' = :pipeline AND state || '' = wanted.state AND id + 0 < :before
        ORDER BY id + 0 DESC LIMIT :limit
    ) AS found ORDER BY found.id DESC LIMIT :limit))
ORDER BY j.id DESC;

-- name: tasks
SELECT {task_columns} FROM intermission.tasks AS t
WHERE t.job_id + 0 = :job AND t.id > :after AND (:step::integer IS NULL OR t.step = :step)
  AND (:states::text[] IS NULL OR t.state = ANY(:states::text[]))
ORDER BY t.id LIMIT :limit;

-- name: tasks_in_states
-- Few are in any state but `done`: they are found by the indices of their states, and sorted.
SELECT {task_columns} FROM (
    SELECT * FROM intermission.tasks AS t
    WHERE ARRAY['blocked'] && :states::text[] AND t.state = 'blocked' AND {asked}
    UNION ALL
    SELECT * FROM intermission.tasks AS t
    WHERE ARRAY['pending', 'retrying', 'abandoned', 'corrupt'] && :states::text[]
      AND {claimable} AND {asked}
    UNION ALL
    SELECT * FROM intermission.tasks AS t
    WHERE ARRAY['leased', 'running'] && :states::text[] AND {held} AND {asked}
    UNION ALL
    SELECT * FROM intermission.tasks AS t
    WHERE ARRAY['failed', 'cancelled'] && :states::text[] AND {stopped} AND {asked}
) AS t
ORDER BY t.id + 0 LIMIT :limit;

-- name: asked
t.job_id = :job AND t.id + 0 > :after AND (:step::integer IS NULL OR t.step = :step)
  AND t.state = ANY(:states::text[])

-- name: events_settled
SELECT intermission.events_settled();

-- name: told
SELECT e.seq, e.at_ms, coalesce(j.key, ''), e.task_id, {event_columns}
FROM intermission.events AS e
LEFT JOIN intermission.jobs AS j ON j.id = e.job_id
LEFT JOIN intermission.tasks AS t ON t.id = e.task_id
LEFT JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE e.seq > :after AND e.seq <= :settled

-- name: events
{told} ORDER BY e.seq LIMIT :limit;

-- name: events_of_job
{told} AND e.job_id = :job ORDER BY e.seq LIMIT :limit;
