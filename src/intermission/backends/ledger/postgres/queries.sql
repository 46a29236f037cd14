-- name: begin
-- Sent as one message. The row says that this change is being made: if the connection is lost and
-- it is made again, it waits here for the first try to end, and finds the row if that committed.
-- A client that went away without a word must not keep what it locked.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('lock_timeout', '5s', true);
WITH last AS (DELETE FROM intermission.changes WHERE token = %(previous)s)
INSERT INTO intermission.changes (token, at_s)
VALUES (%(token)s, extract(epoch FROM clock_timestamp()))
ON CONFLICT DO NOTHING
RETURNING at_s;

-- name: commit
COMMIT;

-- name: now_s
-- As a query of its own, so that it is asked once and an index can be searched for it.
(SELECT coalesce(%(now_s)s, extract(epoch FROM clock_timestamp())::double precision))

-- name: now_ms
(SELECT coalesce(%(now_ms)s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))

-- name: lock_jobs
-- Always in this order, and before any of their tasks: two changes never wait for each other.
SELECT id, revision FROM intermission.jobs WHERE id = ANY(%(jobs)s::bigint[])
ORDER BY id FOR NO KEY UPDATE;

-- name: lock_jobs_of_tasks
SELECT id, revision FROM intermission.jobs
WHERE id = ANY(ARRAY(
    SELECT DISTINCT job_id FROM intermission.tasks WHERE id = ANY(%(ids)s::bigint[])))
ORDER BY id FOR NO KEY UPDATE;

-- name: insert_job
INSERT INTO intermission.jobs
    (key, pipeline, code, source, spec, state, priority, begin_ms, created_ms, updated_ms)
VALUES (%(key)s, %(pipeline)s, %(code)s, %(source)s, %(spec)s, 'pending', %(priority)s,
    %(begin_ms)s, %(now_ms)s, %(now_ms)s)
ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: insert_steps
WITH edges AS (
    INSERT INTO intermission.edges (job_id, step, upstream, kind, plan)
    SELECT %(job)s, * FROM unnest(%(edges_0)s::integer[], %(edges_1)s::integer[],
        %(edges_2)s::text[], %(edges_3)s::integer[])
    ON CONFLICT DO NOTHING
)
INSERT INTO intermission.steps
    (job_id, no, class, name, attempts, needs, prefers, concurrency, gap)
SELECT %(job)s, * FROM unnest(%(steps_0)s::integer[], %(steps_1)s::integer[], %(steps_2)s::text[],
    %(steps_3)s::integer[], %(steps_4)s::text[], %(steps_5)s::text[], %(steps_6)s::integer[],
    %(steps_7)s::boolean[]);

-- name: classes_of
SELECT id, step, needs, prefers FROM intermission.classes WHERE code = %(code)s;

-- name: add_classes
INSERT INTO intermission.classes (pipeline, code, step, needs, prefers)
SELECT * FROM unnest(%(classes_0)s::text[], %(classes_1)s::text[], %(classes_2)s::text[],
    %(classes_3)s::text[], %(classes_4)s::text[])
ON CONFLICT DO NOTHING;

-- name: update_steps
UPDATE intermission.steps AS s
SET class = n.class, attempts = n.attempts, needs = n.needs, prefers = n.prefers,
    concurrency = n.concurrency, gap = n.gap
FROM unnest(%(steps_0)s::integer[], %(steps_1)s::integer[], %(steps_2)s::text[],
        %(steps_3)s::integer[], %(steps_4)s::text[], %(steps_5)s::text[], %(steps_6)s::integer[],
        %(steps_7)s::boolean[])
    AS n (no, class, name, attempts, needs, prefers, concurrency, gap)
WHERE s.job_id = %(job)s AND s.no = n.no;

-- name: update_ready
UPDATE intermission.ready AS r SET class = s.class FROM intermission.steps AS s
WHERE r.job_id = %(job)s AND s.job_id = r.job_id AND s.no = r.step;

-- name: update_spec
UPDATE intermission.jobs SET spec = %(spec)s, revision = revision + 1 WHERE id = %(job)s;

-- name: insert_tasks
-- A task that is there under the same key stays; under another key it starts afresh.
INSERT INTO intermission.tasks AS t (job_id, step, idx, key, chunk, state, updated_ms)
SELECT %(job)s, *, %(now_ms)s FROM unnest(%(rows_0)s::integer[], %(rows_1)s::integer[],
    %(rows_2)s::text[], %(rows_3)s::text[], %(rows_4)s::text[])
ON CONFLICT (job_id, step, idx) DO UPDATE
SET key = excluded.key, chunk = excluded.chunk, state = 'blocked', fence = t.fence + 1,
    attempts = 0, begun = false, lost = 0, lost_on = NULL, refusals = 0, ready_s = 0,
    lease_s = NULL, worker = NULL, token = NULL, progress = 0, adopted = false, gap = false,
    receipt = NULL, files = NULL, result = NULL, error = NULL, code = NULL, message = NULL, started_ms = NULL, ended_ms = NULL, updated_ms = excluded.updated_ms
WHERE t.key <> excluded.key;

-- name: can_expand
-- Locked, so that nobody claims it before its page is there.
SELECT job_id FROM intermission.tasks
WHERE id = %(task)s AND fence = %(fence)s AND key = %(key)s
  AND state NOT IN ('blocked', 'done', 'failed', 'cancelled')
FOR NO KEY UPDATE;

-- name: tasks_in_spans
-- Another answer than before: a chunk came or is another.
SELECT w.step, t.n, t.fences
FROM unnest(%(spans_0)s::integer[], %(spans_1)s::integer[], %(spans_2)s::integer[])
    AS w (step, first, last)
CROSS JOIN LATERAL (
    SELECT count(*) AS n, coalesce(sum(fence), 0) AS fences FROM intermission.tasks
    WHERE job_id = %(job)s AND step = w.step AND idx BETWEEN w.first AND w.last
) AS t;

-- name: delete_surplus
DELETE FROM intermission.tasks WHERE job_id = %(job)s AND step = %(step)s AND idx >= %(count)s
RETURNING id;

-- name: not_refused
(t.refusals = 0 OR NOT EXISTS (
    SELECT 1 FROM intermission.refusals AS r
    WHERE r.task_id = t.id AND r.host = %(host)s AND r.until_s > {now_s}))

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
    WHERE parked = 1 AND due_s <= %(now_s)s OR parked = 2 AND begin_ms <= %(now_ms)s
    ORDER BY job_id, step FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE intermission.ready AS r SET parked = 0 FROM due
WHERE r.job_id = due.job_id AND r.step = due.step;

-- name: found
j.id, j.revision, j.state, r.step, r.class, r.is_waiting,
    EXISTS (SELECT 1 FROM intermission.limits),
    CASE WHEN j.id <> ALL(%(known)s::bigint[]) THEN j.spec END, {any_due}

-- name: fitting_classes
-- What this worker can run, and nobody paused.
(c.needs IS NULL OR c.needs = ANY(%(offers)s::text[]))
  AND (%(runs)s::text[] IS NULL OR c.code = ANY(%(runs)s::text[]))
  AND c.id <> ALL(%(without)s::integer[]) AND NOT EXISTS (
    SELECT 1 FROM intermission.limits AS l WHERE l.paused AND l.name IN
    ('pipeline:' || c.pipeline, 'label:' || c.needs, 'label:' || c.prefers))

-- name: openings
-- Ready steps in the order in which they are served: of each class that has any, one looked up after
-- the other, the first ones, and of all these the first. What it costs depends on what there is, not
-- on how many jobs or classes there are.
WITH RECURSIVE busy (id) AS (
    (SELECT class FROM intermission.ready WHERE parked = 0 ORDER BY class LIMIT 1)
    UNION ALL
    SELECT (SELECT r.class FROM intermission.ready AS r WHERE r.parked = 0 AND r.class > b.id
            ORDER BY r.class LIMIT 1)
    FROM busy AS b WHERE b.id IS NOT NULL
)
SELECT {found}
FROM (
    SELECT r.*, c.prefers IS NOT NULL AND c.prefers <> ALL(%(offers)s::text[]) AS is_waiting
    FROM busy AS b
    CROSS JOIN LATERAL (SELECT * FROM intermission.classes WHERE id = b.id LIMIT 1) AS c
    CROSS JOIN LATERAL (
        SELECT * FROM intermission.ready AS r
        WHERE r.class = c.id AND r.parked = 0 AND r.job_id <> ALL(%(tried)s::bigint[])
        ORDER BY r.priority DESC, r.turn, r.job_id LIMIT %(count)s
    ) AS r
    WHERE {fitting_classes}
    ORDER BY r.priority DESC, r.turn, r.job_id LIMIT %(count)s
) AS r
CROSS JOIN LATERAL (SELECT * FROM intermission.jobs WHERE id = r.job_id LIMIT 1) AS j
ORDER BY r.priority DESC, r.turn, r.job_id, r.step;

-- name: openings_of_jobs
SELECT {found}
FROM (
    SELECT r.*, c.prefers IS NOT NULL AND c.prefers <> ALL(%(offers)s::text[]) AS is_waiting
    FROM intermission.jobs AS j
    JOIN intermission.ready AS r ON r.job_id = j.id AND r.parked = 0
    JOIN intermission.classes AS c ON c.id = r.class
    WHERE j.key = ANY(%(keys)s::text[]) AND j.id <> ALL(%(tried)s::bigint[]) AND {fitting_classes}
    ORDER BY r.priority DESC, r.turn, r.job_id LIMIT %(count)s
) AS r
CROSS JOIN LATERAL (SELECT * FROM intermission.jobs WHERE id = r.job_id LIMIT 1) AS j
ORDER BY r.priority DESC, r.turn, r.job_id, r.step;

-- name: lock_ready
-- Whoever makes a task claimable holds its step's row: those are left to the next claim.
SELECT job_id, step FROM intermission.ready
WHERE (job_id, step) IN (SELECT * FROM unnest(%(places_0)s::bigint[], %(places_1)s::integer[]))
ORDER BY job_id, step FOR UPDATE SKIP LOCKED;

-- name: close_ready
-- A step that has nothing goes; where the time of a retry has not come, it waits for that. Else a
-- limit, a preference or a refusal is in the way, and others may have it.
WITH looked AS MATERIALIZED (
    SELECT w.job_id, w.step, (
        SELECT min(t.ready_s) FROM intermission.tasks AS t
        WHERE t.job_id = w.job_id AND t.step = w.step
          AND t.state IN ('pending', 'retrying', 'abandoned', 'corrupt')
    ) AS due_s
    FROM unnest(%(places_0)s::bigint[], %(places_1)s::integer[]) AS w (job_id, step)
), gone AS (
    DELETE FROM intermission.ready AS r USING looked AS l
    WHERE r.job_id = l.job_id AND r.step = l.step AND l.due_s IS NULL
)
UPDATE intermission.ready AS r SET parked = 1, due_s = l.due_s FROM looked AS l
WHERE r.job_id = l.job_id AND r.step = l.step AND l.due_s > %(now_s)s;

-- name: open_steps
SELECT intermission.open_step(s.job_id, s.no) FROM intermission.steps AS s
WHERE s.job_id = %(job)s AND EXISTS (
    SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = s.job_id AND t.step = s.no
    AND t.state IN ('pending', 'retrying', 'abandoned', 'corrupt'));

-- name: lock_bounds
-- A step's bound is counted and used up by one claim at a time. In one order, as all locks.
SELECT pg_advisory_xact_lock(18766, name) FROM (
    SELECT DISTINCT hashtext(name) AS name FROM unnest(%(names)s::text[]) AS name ORDER BY 1
) AS names;

-- name: lock_limits
SELECT name, running, per_minute, paused, tokens, filled_ms FROM intermission.limits
WHERE name = ANY(%(names)s::text[]) ORDER BY name FOR UPDATE;

-- name: held_under_step
-- Over every job of the same pipeline, because a limit protects something they share.
SELECT count(*) FROM intermission.tasks AS t
JOIN intermission.jobs AS j ON j.id = t.job_id AND j.pipeline = %(pipeline)s
JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step AND s.name = %(what)s
WHERE t.state IN ('leased', 'running');

-- name: held_under_job
SELECT count(*) FROM intermission.jobs AS j JOIN intermission.tasks AS t ON t.job_id = j.id
WHERE j.key = %(what)s AND t.state IN ('leased', 'running');

-- name: held_under_pipeline
SELECT count(*) FROM intermission.jobs AS j JOIN intermission.tasks AS t ON t.job_id = j.id
WHERE j.pipeline = %(what)s AND t.state IN ('leased', 'running');

-- name: held_under_label
SELECT count(*) FROM intermission.tasks AS t
JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE %(what)s IN (s.needs, s.prefers) AND t.state IN ('leased', 'running');

-- name: use_rate
UPDATE intermission.limits SET tokens = %(tokens)s, filled_ms = %(now_ms)s WHERE name = %(name)s;

-- name: set_limit
INSERT INTO intermission.limits AS l (name, running, per_minute, paused, tokens, filled_ms)
VALUES (%(name)s, %(running)s, %(per_minute)s, %(paused)s, %(tokens)s, %(now_ms)s)
ON CONFLICT (name) DO UPDATE
SET running = excluded.running, per_minute = excluded.per_minute, paused = excluded.paused,
    tokens = least(l.tokens, excluded.tokens);

-- name: drop_limit
DELETE FROM intermission.limits WHERE name = %(name)s;

-- name: limits
SELECT name, running, per_minute, paused FROM intermission.limits ORDER BY name COLLATE "C";

-- name: picked
-- Jobs are visited in their order until there is enough; of each, the oldest tasks of its open
-- steps. A task that another claim has locked is passed by.
SELECT c.id, c.step FROM unnest(%(jobs)s::bigint[]) AS o (job_id)
CROSS JOIN LATERAL (
    SELECT t.id, t.step
    FROM unnest(%(requests_0)s::bigint[], %(requests_1)s::integer[], %(requests_2)s::integer[],
            %(requests_3)s::bigint[]) AS s (job_id, step, room, since_ms)
    CROSS JOIN LATERAL (
        SELECT t.id, t.step FROM intermission.tasks AS t
        WHERE t.job_id = s.job_id AND t.step = s.step AND t.ready_s <= %(now_s)s
          AND t.updated_ms <= s.since_ms
          AND t.state IN ('pending', 'retrying', 'abandoned', 'corrupt') AND {not_refused}
        ORDER BY t.id + 0 LIMIT s.room FOR NO KEY UPDATE SKIP LOCKED
    ) AS t
    WHERE s.job_id = o.job_id ORDER BY t.id LIMIT %(count)s
) AS c
LIMIT %(count)s

-- name: pick
{picked};

-- name: leased
UPDATE intermission.tasks
SET state = 'leased', fence = fence + 1, begun = %(begin)s, worker = %(worker)s,
    lease_s = %(lease_s)s, token = NULL, progress = 0, started_ms = %(now_ms)s, ended_ms = NULL,
    updated_ms = %(now_ms)s

-- name: claim
WITH picked AS MATERIALIZED (
{picked}
)
{leased}
WHERE id = ANY(ARRAY(SELECT id FROM picked))
RETURNING job_id, id, fence, attempts + 1, step, idx, key, chunk, lost;

-- name: claim_picked
{leased}
WHERE id = ANY(%(ids)s::bigint[])
RETURNING job_id, id, fence, attempts + 1, step, idx, key, chunk, lost;

-- name: take_turns
-- Counted by events, of which each of these jobs has just made one at least. Where two claims of
-- one job meet, the word of the first is as good as that of both. Some have only begun.
WITH running AS (
    UPDATE intermission.jobs SET state = 'running', updated_ms = %(now_ms)s
    WHERE id = ANY(%(starting)s::bigint[]) AND state IN ('pending', 'draining')
), free AS MATERIALIZED (
    SELECT job_id FROM intermission.turns WHERE job_id = ANY(%(jobs)s::bigint[])
    ORDER BY job_id FOR NO KEY UPDATE SKIP LOCKED
), turned AS (
    UPDATE intermission.turns AS q
    SET turn = (SELECT last_value FROM intermission.events_seq_seq)
        - cardinality(%(jobs)s::bigint[]) + o.rank
    FROM free, unnest(%(jobs)s::bigint[]) WITH ORDINALITY AS o (job_id, rank)
    WHERE q.job_id = free.job_id AND q.job_id = o.job_id
    RETURNING q.job_id, q.turn
), emptied AS MATERIALIZED (
    SELECT * FROM unnest(%(emptied_0)s::bigint[], %(emptied_1)s::integer[]) AS e (job_id, step)
), closed AS (
    DELETE FROM intermission.ready WHERE (job_id, step) IN (SELECT job_id, step FROM emptied)
), open AS MATERIALIZED (
    SELECT job_id, step FROM intermission.ready AS r WHERE job_id = ANY(%(jobs)s::bigint[])
      AND NOT EXISTS (SELECT 1 FROM emptied AS e WHERE e.job_id = r.job_id AND e.step = r.step)
    ORDER BY job_id, step FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE intermission.ready AS r SET turn = turned.turn FROM turned, open
WHERE r.job_id = turned.job_id AND r.job_id = open.job_id AND r.step = open.step;

-- name: renew
WITH beat AS MATERIALIZED (
    SELECT * FROM unnest(%(beats_0)s::bigint[], %(beats_1)s::bigint[],
            %(beats_2)s::double precision[], %(beats_3)s::boolean[])
        AS b (id, fence, progress, begun)
), locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks WHERE id = ANY(%(beats_0)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
)
UPDATE intermission.tasks AS t
SET state = CASE WHEN t.state = 'leased' AND NOT b.begun THEN t.state ELSE 'running' END,
    begun = t.begun OR b.begun,
    progress = greatest(t.progress, b.progress), updated_ms = %(now_ms)s,
    -- A beat that crosses a deferral on its way must not shorten it.
    lease_s = CASE WHEN t.token IS NULL THEN %(lease_s)s ELSE t.lease_s END,
    worker = CASE WHEN t.token IS NULL THEN %(worker)s END
FROM beat AS b
WHERE t.id = b.id AND t.id = ANY(ARRAY(SELECT id FROM locked)) AND t.fence = b.fence
  AND t.state IN ('leased', 'running', 'abandoned')
RETURNING t.id;

-- name: tell_progress
-- After `renew`, which has announced the events of its transaction. A clock that was set back
-- keeps nobody silent.
WITH told AS (
    UPDATE intermission.tasks SET told = round(progress * 100), told_ms = %(now_ms)s
    WHERE id = ANY(%(ids)s::bigint[]) AND state = 'running'
      AND round(progress * 100) NOT IN (0, coalesce(told, 0))
      AND coalesce(told_ms, 0) NOT BETWEEN %(now_ms)s - %(every_ms)s + 1 AND %(now_ms)s
    RETURNING id, job_id, step, fence, worker, progress
)
INSERT INTO intermission.events
    (at_ms, job_id, task_id, step, was, now, fence, worker, progress)
SELECT %(now_ms)s, job_id, id, step, 'running', 'running', fence, worker, progress
FROM told ORDER BY id;

-- name: fates
SELECT t.id, t.state, t.fence, j.state, t.key
FROM intermission.tasks AS t JOIN intermission.jobs AS j ON j.id = t.job_id
WHERE t.id = ANY(%(ids)s::bigint[]);

-- name: complete
WITH ended AS MATERIALIZED (
    SELECT * FROM unnest(%(done_0)s::bigint[], %(done_1)s::bigint[], %(done_2)s::text[],
            %(done_3)s::text[], %(done_4)s::text[], %(done_5)s::boolean[], %(done_6)s::text[],
            %(done_7)s::boolean[])
        AS e (id, fence, result, receipt, files, adopted, key, by_receipt)
), locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks WHERE id = ANY(%(done_0)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
)
UPDATE intermission.tasks AS t
SET state = 'done', result = e.result, receipt = e.receipt, files = e.files, adopted = e.adopted,
    progress = 1, worker = NULL, lease_s = NULL, token = NULL, refusals = 0, error = NULL,
    code = NULL, message = NULL, ended_ms = %(now_ms)s, updated_ms = %(now_ms)s
FROM ended AS e
WHERE t.id = e.id AND t.id = ANY(ARRAY(SELECT id FROM locked)) AND t.fence = e.fence
  AND t.key = coalesce(e.key, t.key) AND CASE WHEN e.by_receipt
    THEN t.state IN ('pending', 'retrying', 'abandoned', 'corrupt')
    ELSE t.state IN ('leased', 'running', 'abandoned') END
RETURNING t.id, t.fence, t.job_id, t.step, t.idx;

-- name: fail
WITH failure AS MATERIALIZED (
    SELECT * FROM unnest(%(failures_0)s::bigint[], %(failures_1)s::bigint[],
            %(failures_2)s::text[], %(failures_3)s::boolean[], %(failures_4)s::double precision[],
            %(failures_5)s::text[], %(failures_6)s::text[], %(failures_7)s::text[])
        AS f (id, fence, key, permanent, ready_s, error, code, message)
), locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks WHERE id = ANY(%(failures_0)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
)
UPDATE intermission.tasks AS t
SET state = CASE WHEN f.permanent OR t.attempts + 1 >= s.attempts
        THEN 'failed' ELSE 'retrying' END,
    gap = (f.permanent OR t.attempts + 1 >= s.attempts) AND s.gap,
    refusals = CASE WHEN f.permanent OR t.attempts + 1 >= s.attempts THEN 0 ELSE t.refusals END,
    attempts = t.attempts + 1, ready_s = f.ready_s, error = f.error, code = f.code,
    message = f.message,
    worker = NULL, lease_s = NULL, token = NULL, ended_ms = %(now_ms)s, updated_ms = %(now_ms)s
FROM failure AS f, intermission.steps AS s
WHERE t.id = f.id AND t.id = ANY(ARRAY(SELECT id FROM locked)) AND t.fence = f.fence
  AND t.key = coalesce(f.key, t.key) AND s.job_id = t.job_id AND s.no = t.step
  AND t.state IN ('leased', 'running', 'abandoned')
RETURNING t.id, t.fence, t.job_id, t.step, t.idx, t.state;

-- name: release
WITH lease AS MATERIALIZED (
    SELECT * FROM unnest(%(leases_0)s::bigint[], %(leases_1)s::bigint[]) AS l (id, fence)
), locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks WHERE id = ANY(%(leases_0)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
)
UPDATE intermission.tasks AS t
SET state = 'abandoned', code = %(reason)s, message = %(message)s,
    ready_s = 0, worker = NULL, lease_s = NULL, token = NULL, updated_ms = %(now_ms)s
FROM lease AS l
WHERE t.id = l.id AND t.id = ANY(ARRAY(SELECT id FROM locked)) AND t.fence = l.fence
  AND t.state IN ('leased', 'running')
RETURNING t.id;

-- name: refuse
INSERT INTO intermission.refusals (task_id, host, code, message, until_s)
SELECT id, %(host)s, %(reason)s, %(message)s, %(until_s)s
FROM unnest(%(ids)s::bigint[]) AS id
ON CONFLICT (task_id, host) DO UPDATE
SET code = excluded.code, message = excluded.message, until_s = excluded.until_s;

-- name: refusals
SELECT host, code, min(message), count(*),
    {now_ms} + ((max(until_s) - {now_s}) * 1000)::bigint
FROM intermission.refusals WHERE until_s > {now_s} GROUP BY host, code ORDER BY host, code;

-- name: count_refusals
UPDATE intermission.tasks AS t
SET refusals = (SELECT count(*) FROM intermission.refusals AS r WHERE r.task_id = t.id)
WHERE t.id = ANY(%(ids)s::bigint[]);

-- name: defer
UPDATE intermission.tasks
SET state = 'running', worker = NULL, token = %(token)s, lease_s = %(lease_s)s,
    updated_ms = %(now_ms)s
WHERE id = %(task)s AND fence = %(fence)s AND state IN ('leased', 'running')
RETURNING id;

-- name: remember_deferral
INSERT INTO intermission.deferrals (token, task_id, fence)
VALUES (%(token)s, %(task)s, %(fence)s)
ON CONFLICT (token, task_id) DO UPDATE SET fence = excluded.fence;

-- name: jobs_to_rescue
SELECT DISTINCT job_id FROM intermission.tasks
WHERE state IN ('leased', 'running') AND (lease_s <= {now_s} OR worker = ANY(%(dead)s::text[]));

-- name: rescue
-- What a deferral costs, and a worker that vanished while it ran the task: see `fail`.
WITH locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks
    WHERE job_id = ANY(%(jobs)s::bigint[]) AND state IN ('leased', 'running')
      AND (lease_s <= %(now_s)s OR worker = ANY(%(dead)s::text[]))
    ORDER BY id FOR NO KEY UPDATE
), gone AS MATERIALIZED (
    SELECT t.id, s.gap, t.token IS NOT NULL AS deferred,
        CASE WHEN t.token IS NULL THEN t.lost + t.begun::integer >= %(lost_max)s
        ELSE t.attempts + 1 >= s.attempts END AS is_last,
        CASE WHEN t.token IS NULL AND t.begun THEN concat_ws(', ', t.lost_on, t.worker)
        ELSE t.lost_on END AS lost_on
    FROM intermission.tasks AS t
    JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step
    WHERE t.id = ANY(ARRAY(SELECT id FROM locked))
)
UPDATE intermission.tasks AS t
SET state = CASE WHEN g.is_last THEN 'failed' ELSE 'abandoned' END,
    gap = g.is_last AND g.gap,
    refusals = CASE WHEN g.is_last THEN 0 ELSE t.refusals END,
    attempts = t.attempts + g.deferred::integer,
    lost = t.lost + (t.begun AND NOT g.deferred)::integer, lost_on = g.lost_on,
    error = CASE WHEN g.deferred THEN 'DeferralTimedOut' ELSE 'WorkerLost' END,
    code = CASE WHEN g.deferred THEN 'deferral-timed-out' ELSE 'lost' END,
    message = CASE
        WHEN g.deferred THEN 'it was deferred, and no result came in time'
        WHEN g.is_last THEN (t.lost + t.begun::integer) || ' workers vanished while they ran it: '
            || g.lost_on
        ELSE 'the worker ' || t.worker || ' vanished' END,
    worker = NULL, lease_s = NULL, token = NULL, ready_s = 0, ended_ms = %(now_ms)s,
    updated_ms = %(now_ms)s
FROM gone AS g WHERE t.id = g.id
RETURNING t.job_id, t.step, t.idx, t.state;

-- name: waits
-- The one rule for when a task may not start yet; every path that ends a task asks it again. Each
-- question is about a few rows of one job: asked with LIMIT 1, it cannot be made a join with all.
(SELECT 1 FROM intermission.edges AS e WHERE e.job_id = t.job_id AND e.step = t.step
    AND CASE e.kind
    WHEN 'one' THEN (
        SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.idx = 0 AND u.state = 'done' LIMIT 1) IS NULL
    WHEN 'same' THEN (
        SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.idx = t.idx AND u.state = 'done' LIMIT 1) IS NULL
    ELSE coalesce((
        SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.state = 'blocked' ORDER BY u.idx LIMIT 1
      ), (
        SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.state IN ('pending', 'retrying', 'abandoned', 'corrupt') ORDER BY u.id + 0 LIMIT 1
      ), (
        SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.state IN ('leased', 'running') ORDER BY u.id + 0 LIMIT 1
      ), (
        SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = t.job_id AND u.step = e.upstream
        AND u.state IN ('failed', 'cancelled') AND NOT u.gap ORDER BY u.id + 0 LIMIT 1
      )) IS NOT NULL
      OR (
        SELECT 1 FROM intermission.tasks AS p WHERE p.job_id = t.job_id AND p.step = e.plan
        AND p.idx = 0 AND p.state = 'done' LIMIT 1) IS NULL
    END
    LIMIT 1) IS NOT NULL

-- name: unfinished
-- Whether anything of a job is left to do.
coalesce((
    SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = j.id
    AND u.state = 'blocked' ORDER BY u.step, u.idx LIMIT 1
  ), (
    SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = j.id
    AND u.state IN ('pending', 'retrying', 'abandoned', 'corrupt')
    ORDER BY u.step, u.id + 0 LIMIT 1
  ), (
    SELECT 1 FROM intermission.tasks AS u WHERE u.job_id = j.id
    AND u.state IN ('leased', 'running') ORDER BY u.step, u.id + 0 LIMIT 1
  )) IS NOT NULL

-- name: unblock
UPDATE intermission.tasks AS t SET state = 'pending', ready_s = 0, updated_ms = %(now_ms)s
FROM unnest(%(places_0)s::bigint[], %(places_1)s::integer[], %(places_2)s::integer[],
        %(places_3)s::integer[])
    AS w (job_id, step, first, last)
WHERE t.job_id = w.job_id AND t.step = w.step AND t.idx BETWEEN w.first AND w.last
  AND t.state = 'blocked' AND NOT ({waits})
RETURNING t.id;

-- name: satisfied
-- Whether a step without 'same' edges could start now.
SELECT NOT ({waits}) FROM (SELECT %(job)s::bigint, %(step)s::integer, 0) AS t (job_id, step, idx);

-- name: to_sweep
-- A few active jobs, each time the next ones.
SELECT id FROM intermission.jobs
WHERE state IN ('pending', 'running', 'draining') AND id > %(after)s ORDER BY id LIMIT %(limit)s;

-- name: unsettled
-- Active jobs that were left behind: a task of theirs could start or be claimed, or nothing
-- is left to do. Of a
-- step's blocked tasks the first is looked at. All wait for the same, except chunk by chunk: and
-- there, one that was missed becomes the first once those before it are done.
SELECT j.id FROM intermission.jobs AS j
WHERE j.id = ANY(%(jobs)s::bigint[]) AND j.state IN ('pending', 'running', 'draining') AND (
    NOT ({unfinished})
    OR (SELECT 1 FROM intermission.steps AS s
        CROSS JOIN LATERAL (
            SELECT b.job_id, b.step, b.idx FROM intermission.tasks AS b
            WHERE b.job_id = j.id AND b.step = s.no AND b.state = 'blocked'
            ORDER BY b.idx LIMIT 1
        ) AS t
        WHERE s.job_id = j.id AND NOT ({waits})
        LIMIT 1) IS NOT NULL
    OR (SELECT 1 FROM intermission.steps AS s
        CROSS JOIN LATERAL (
            SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = j.id AND t.step = s.no
            AND t.state IN ('pending', 'retrying', 'abandoned', 'corrupt')
            ORDER BY t.id + 0 LIMIT 1
        ) AS claimable
        WHERE s.job_id = j.id AND NOT EXISTS (
            SELECT 1 FROM intermission.ready AS r WHERE r.job_id = j.id AND r.step = s.no)
        LIMIT 1) IS NOT NULL);

-- name: settle
UPDATE intermission.jobs AS j SET updated_ms = %(now_ms)s, reason = NULL, state = CASE
    WHEN EXISTS (SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = j.id
                 AND t.state IN ('failed', 'cancelled') AND t.state = 'failed' AND NOT t.gap)
    THEN 'failed'
    WHEN EXISTS (SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = j.id
                 AND t.state IN ('failed', 'cancelled') AND NOT t.gap) THEN 'cancelled'
    ELSE 'done' END
WHERE j.id = ANY(%(jobs)s::bigint[]) AND j.state IN ('pending', 'running', 'draining')
  AND NOT ({unfinished})
RETURNING j.id;

-- name: any_stopped
SELECT (
    SELECT 1 FROM intermission.tasks WHERE job_id = %(job)s AND state IN ('failed', 'cancelled')
    ORDER BY step, id + 0 LIMIT 1
) IS NOT NULL;

-- name: cancel_hopeless
-- A task whose input has stopped will never end well, whatever it does now. If the input is a gap,
-- so is this; a gap that also lacks another input is one no longer.
UPDATE intermission.tasks AS t SET state = 'cancelled', code = 'input-stopped', refusals = 0,
    worker = NULL, lease_s = NULL, token = NULL, updated_ms = %(now_ms)s,
    gap = NOT EXISTS (
        SELECT 1 FROM intermission.stopped_inputs AS i WHERE i.job_id = t.job_id
        AND i.step = t.step AND NOT i.gap AND (i.at IS NULL OR i.at = t.idx)),
    message = (
        SELECT i.message FROM intermission.stopped_inputs AS i
        WHERE i.job_id = t.job_id AND i.step = t.step AND (i.at IS NULL OR i.at = t.idx)
        ORDER BY i.gap LIMIT 1)
WHERE t.job_id = %(job)s AND t.step = %(step)s AND t.idx BETWEEN %(first)s AND %(last)s
  AND (t.state NOT IN ('done', 'failed', 'cancelled') OR t.state = 'cancelled' AND t.gap)
  AND EXISTS (
    SELECT 1 FROM intermission.stopped_inputs AS i
    WHERE i.job_id = t.job_id AND i.step = t.step AND (i.at IS NULL OR i.at = t.idx));

-- name: cancel_all
WITH locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks
    WHERE job_id = %(job)s AND state NOT IN ('done', 'failed', 'cancelled')
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE intermission.tasks
SET state = 'cancelled', code = 'cancelled', message = %(message)s, refusals = 0, worker = NULL,
    lease_s = NULL, token = NULL, updated_ms = %(now_ms)s
WHERE job_id = %(job)s AND id IN (SELECT id FROM locked);

-- name: afresh
-- A fresh set of attempts, a new fence.
fence = fence + 1, attempts = 0, begun = false, lost = 0, lost_on = NULL, refusals = 0,
    ready_s = 0, lease_s = NULL, worker = NULL, token = NULL, progress = 0, adopted = false,
    gap = false, receipt = NULL, files = NULL, result = NULL, error = NULL, started_ms = NULL,
    ended_ms = NULL, updated_ms = %(now_ms)s

-- name: put_back
-- Tasks that must run again, or wait again.
WITH locked AS MATERIALIZED (
    SELECT id FROM intermission.tasks
    WHERE job_id = %(job)s AND step = %(step)s AND idx BETWEEN %(first)s AND %(last)s
      AND state = ANY(%(states)s::text[])
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE intermission.tasks SET state = %(state)s, code = %(code)s, message = %(message)s, {afresh}
WHERE job_id = %(job)s AND step = %(step)s AND idx BETWEEN %(first)s AND %(last)s
  AND id IN (SELECT id FROM locked)
RETURNING id;

-- name: send_back
-- Tasks that wait again, because an input is not done any more.
WITH locked AS MATERIALIZED (
    SELECT t.id FROM intermission.tasks AS t
    WHERE t.job_id = %(job)s AND t.step = %(step)s AND t.idx BETWEEN %(first)s AND %(last)s
      AND t.state <> 'blocked' AND ({waits})
    ORDER BY t.id FOR NO KEY UPDATE
)
UPDATE intermission.tasks SET state = 'blocked', code = NULL, message = NULL, {afresh}
WHERE id = ANY(ARRAY(SELECT id FROM locked))
RETURNING id;

-- name: job_restarts
UPDATE intermission.jobs SET state = 'running', reason = NULL, updated_ms = %(now_ms)s
WHERE id = %(job)s AND state IN ('done', 'failed', 'cancelled');

-- name: job_ends
UPDATE intermission.jobs SET state = 'cancelled', reason = %(message)s, updated_ms = %(now_ms)s
WHERE id = %(job)s AND state IN ('pending', 'running', 'draining') RETURNING id;

-- name: mark
UPDATE intermission.jobs SET state = %(state)s, reason = %(reason)s, updated_ms = %(now_ms)s
WHERE key = %(key)s AND state = ANY(%(before)s::text[]) RETURNING id;

-- name: stopped
SELECT step, idx FROM intermission.tasks
WHERE job_id = %(job)s AND state IN ('failed', 'cancelled')
  AND (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[]))
ORDER BY id;

-- name: done_among
SELECT id, job_id, step, idx FROM intermission.tasks
WHERE state = 'done' AND id = ANY(%(ids)s::bigint[]) ORDER BY id;

-- name: done_plans
SELECT step FROM intermission.tasks
WHERE job_id = %(job)s AND step = ANY(%(plans)s::integer[]) AND state = 'done';

-- name: lock_claimable
-- Waits for claims under way, and keeps others from starting.
SELECT count(*) FROM (
    SELECT 1 FROM intermission.tasks
    WHERE job_id = %(job)s AND state IN ('pending', 'retrying', 'abandoned', 'corrupt')
    ORDER BY id FOR NO KEY UPDATE
) AS locked;

-- name: any_held
SELECT (
    SELECT 1 FROM intermission.tasks WHERE job_id = %(job)s AND state IN ('leased', 'running')
    ORDER BY step, id + 0 LIMIT 1
) IS NOT NULL;

-- name: forget
WITH gone AS (DELETE FROM intermission.tasks WHERE job_id = %(job)s)
DELETE FROM intermission.jobs WHERE id = %(job)s;

-- name: forget_history
-- After the tasks, which are still counted as they go.
WITH gone AS (DELETE FROM intermission.counts WHERE job_id = %(job)s)
DELETE FROM intermission.events WHERE job_id = %(job)s;

-- name: fold_counts
-- Many small changes become one row per step and state. Whoever holds the job's row may do it:
-- changes that others are adding meanwhile are not seen here, and stay.
WITH gone AS (
    DELETE FROM intermission.counts WHERE job_id = ANY(%(jobs)s::bigint[]) RETURNING job_id, step, state, n
)
INSERT INTO intermission.counts (job_id, step, state, n)
SELECT job_id, step, state, sum(n) FROM gone GROUP BY job_id, step, state HAVING sum(n) <> 0;

-- name: unfolded_jobs
SELECT job_id FROM intermission.counts WHERE job_id = ANY(%(jobs)s::bigint[])
GROUP BY job_id HAVING count(*) > %(most)s;

-- name: forget_changes
DELETE FROM intermission.changes WHERE at_s < extract(epoch FROM clock_timestamp()) - %(age_s)s;

-- name: outputs
SELECT t.idx, t.state, coalesce(t.receipt, t.key), t.result, t.files
FROM intermission.jobs AS j
JOIN intermission.steps AS s ON s.job_id = j.id AND s.name = %(step)s
CROSS JOIN LATERAL (
    SELECT * FROM intermission.tasks AS t
    WHERE t.job_id = j.id AND t.step = s.no AND t.idx > %(after)s ORDER BY t.idx LIMIT %(limit)s
) AS t
WHERE j.key = %(job)s ORDER BY t.idx;

-- name: job_id
SELECT id FROM intermission.jobs WHERE key = %(key)s;

-- name: job_columns
j.id, j.revision, j.state, j.created_ms, j.updated_ms, j.reason, (
    SELECT json_agg(json_build_array(c.step, c.state, c.n) ORDER BY c.step)::text FROM (
        SELECT step, state, sum(n) AS n FROM intermission.counts
        WHERE job_id = j.id GROUP BY step, state HAVING sum(n) > 0
    ) AS c)

-- name: fitting_jobs
-- Sorted before they are counted, so that only the rows of a page are.
j.id + 0 < %(before)s AND (%(states)s::text[] IS NULL OR j.state = ANY(%(states)s::text[]))
  AND (%(pipeline)s::text IS NULL OR j.pipeline = %(pipeline)s)
ORDER BY j.id + 0 DESC LIMIT %(limit)s

-- name: jobs_by_key
SELECT {job_columns} FROM intermission.jobs AS j
WHERE j.key >= %(first)s AND j.key < %(last)s
  AND (%(source)s::text IS NULL OR j.source = %(source)s) AND {fitting_jobs};

-- name: jobs_of_source
SELECT {job_columns} FROM intermission.jobs AS j WHERE j.source = %(source)s AND {fitting_jobs};

-- name: newest_jobs
SELECT {job_columns} FROM intermission.jobs AS j
WHERE j.id < %(before)s ORDER BY j.id DESC LIMIT %(limit)s;

-- name: jobs_in_states
SELECT {job_columns} FROM intermission.jobs AS j WHERE j.id = ANY(ARRAY(
    SELECT found.id FROM unnest(%(states)s::text[]) AS wanted (state), LATERAL (
        SELECT id FROM intermission.jobs
        WHERE state || '' = wanted.state AND id + 0 < %(before)s ORDER BY id + 0 DESC LIMIT %(limit)s
    ) AS found ORDER BY found.id DESC LIMIT %(limit)s))
ORDER BY j.id DESC;

-- name: jobs_of_pipeline
SELECT {job_columns} FROM intermission.jobs AS j WHERE j.id = ANY(ARRAY(
    SELECT found.id FROM unnest(%(states)s::text[]) AS wanted (state), LATERAL (
        SELECT id FROM intermission.jobs
        WHERE pipeline || '' = %(pipeline)s AND state || '' = wanted.state AND id + 0 < %(before)s
        ORDER BY id + 0 DESC LIMIT %(limit)s
    ) AS found ORDER BY found.id DESC LIMIT %(limit)s))
ORDER BY j.id DESC;

-- name: job_specs
SELECT id, revision, spec FROM intermission.jobs WHERE id = ANY(%(jobs)s::bigint[]);

-- name: task_columns
t.id, t.step, t.idx, t.key, t.chunk, t.state, t.attempts, t.fence, t.worker, t.progress, t.error,
t.message, t.adopted, t.started_ms, t.ended_ms, t.code, t.lost, t.refusals,
CASE WHEN t.state = 'retrying' AND t.ready_s > {now_s}
THEN {now_ms} + ((t.ready_s - {now_s}) * 1000)::bigint END

-- name: tasks
SELECT {task_columns} FROM intermission.tasks AS t
WHERE t.job_id = %(job)s AND t.id > %(after)s AND (%(step)s::integer IS NULL OR t.step = %(step)s)
  AND (%(states)s::text[] IS NULL OR t.state = ANY(%(states)s::text[]))
ORDER BY t.id LIMIT %(limit)s;

-- name: tasks_in_states
-- Few are in any state but `done`: they are found by the index of their state, and sorted.
SELECT {task_columns} FROM intermission.tasks AS t
WHERE t.job_id = %(job)s AND t.id + 0 > %(after)s
  AND (%(step)s::integer IS NULL OR t.step = %(step)s) AND t.state = ANY(%(states)s::text[])
ORDER BY t.id + 0 LIMIT %(limit)s;

-- name: receipts
SELECT {task_columns}, coalesce(t.receipt, t.key), t.result, t.files FROM intermission.tasks AS t
WHERE t.job_id = %(job)s AND t.id > %(after)s AND t.files IS NOT NULL AND t.state = 'done'
ORDER BY t.id LIMIT %(limit)s;

-- name: deferred
SELECT {task_columns}, t.job_id, d.fence
FROM intermission.deferrals AS d JOIN intermission.tasks AS t ON t.id = d.task_id
WHERE d.token = %(token)s
ORDER BY t.state = 'running' AND t.fence = d.fence DESC, t.id DESC LIMIT 1;

-- name: events_settled
SELECT intermission.events_settled();

-- name: events
SELECT e.seq, e.at_ms, coalesce(j.key, ''), e.task_id,
       s.name || CASE WHEN t.chunk IS NULL THEN '' ELSE '[' || t.idx || ']' END,
       e.was, e.now, e.fence, e.worker, e.message, e.progress, e.code,
       s.name, t.idx
FROM intermission.events AS e
LEFT JOIN intermission.jobs AS j ON j.id = e.job_id
LEFT JOIN intermission.tasks AS t ON t.id = e.task_id
LEFT JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE e.seq > %(after)s AND e.seq <= %(settled)s ORDER BY e.seq LIMIT %(limit)s;

-- name: events_of_job
SELECT e.seq, e.at_ms, coalesce(j.key, ''), e.task_id,
       s.name || CASE WHEN t.chunk IS NULL THEN '' ELSE '[' || t.idx || ']' END,
       e.was, e.now, e.fence, e.worker, e.message, e.progress, e.code,
       s.name, t.idx
FROM intermission.events AS e
LEFT JOIN intermission.jobs AS j ON j.id = e.job_id
LEFT JOIN intermission.tasks AS t ON t.id = e.task_id
LEFT JOIN intermission.steps AS s ON s.job_id = t.job_id AND s.no = t.step
WHERE e.job_id = %(job)s AND e.seq > %(after)s AND e.seq <= %(settled)s ORDER BY e.seq LIMIT %(limit)s;

-- name: workers
SELECT DISTINCT worker FROM intermission.tasks
WHERE worker IS NOT NULL AND state IN ('leased', 'running') ORDER BY worker;
