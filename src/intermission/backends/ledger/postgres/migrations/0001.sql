-- The ledger, in a schema of its own. Times ending in _ms are UTC wall clock, for people; times
-- ending in _s are seconds of the database's clock, for leases and retry delays.

CREATE TABLE intermission.jobs (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        text COLLATE "C" NOT NULL UNIQUE CHECK (key <> ''),
    pipeline   text NOT NULL,
    code       text NOT NULL, -- what a worker must have to run it: pipeline@graph
    source     text NOT NULL, -- its URI
    spec       text NOT NULL,
    revision   integer NOT NULL DEFAULT 0, -- of the spec: its limits may change
    state      text NOT NULL,
    priority   integer NOT NULL DEFAULT 0,
    begin_ms   bigint NOT NULL DEFAULT 0,
    reason     text,
    created_ms bigint NOT NULL,
    updated_ms bigint NOT NULL
);

CREATE INDEX jobs_active ON intermission.jobs (id)
    WHERE state IN ('pending', 'running', 'draining');

-- For lists in pages, newest first: a page is a walk along one of these. They have expressions
-- that no claim has, so that none is ever planned along them, and are in the order of `id + 0`,
-- which nothing else gives, as with the tasks below.
CREATE INDEX jobs_of_source ON intermission.jobs (source, (id + 0));
CREATE INDEX jobs_in_state ON intermission.jobs ((state || ''), (id + 0));
CREATE INDEX jobs_of_pipeline ON intermission.jobs ((pipeline || ''), (state || ''), (id + 0));

-- Whose turn it is. Apart from the jobs, because every claim writes here, and must not wait for
-- whoever holds a job's row.
CREATE TABLE intermission.turns (
    job_id bigint PRIMARY KEY REFERENCES intermission.jobs (id) ON DELETE CASCADE,
    turn   bigint NOT NULL DEFAULT 0 -- the event it was last given a task at
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);

-- Steps that the same workers can run: few, however many jobs there are.
CREATE TABLE intermission.classes (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    code     text NOT NULL, -- of the job
    pipeline text NOT NULL,
    step     text NOT NULL,
    needs    text,
    prefers  text
);
CREATE UNIQUE INDEX classes_alike
    ON intermission.classes (code, step, coalesce(needs, ''), coalesce(prefers, ''));

-- Steps of jobs that may have a task to claim, in the order in which they are served. A row comes
-- when a task becomes claimable, and goes when a claim finds none: what a claim costs depends on
-- what there is for it. `parked`: 1 waits for the time of a retry, 2 for the time of its job.
CREATE TABLE intermission.ready (
    job_id   bigint NOT NULL REFERENCES intermission.jobs (id) ON DELETE CASCADE,
    step     integer NOT NULL,
    class    integer NOT NULL,
    priority integer NOT NULL,
    turn     bigint NOT NULL,
    parked   smallint NOT NULL,
    due_s    double precision NOT NULL DEFAULT 0,
    begin_ms bigint NOT NULL,
    PRIMARY KEY (job_id, step)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
CREATE INDEX ready_in_turn ON intermission.ready (class, priority DESC, turn, job_id)
    WHERE parked = 0;
CREATE INDEX ready_retries ON intermission.ready (due_s) WHERE parked = 1;
CREATE INDEX ready_begins ON intermission.ready (begin_ms) WHERE parked = 2;

CREATE TABLE intermission.limits (
    name       text COLLATE "C" PRIMARY KEY, -- job:KEY, pipeline:NAME or label:NAME
    running    integer,
    per_minute double precision,
    paused     boolean NOT NULL,
    tokens     double precision NOT NULL, -- how many may start now, by the rate
    filled_ms  bigint NOT NULL
);

CREATE TABLE intermission.steps (
    job_id      bigint NOT NULL REFERENCES intermission.jobs (id) ON DELETE CASCADE,
    no          integer NOT NULL,
    class       integer NOT NULL REFERENCES intermission.classes (id),
    name        text NOT NULL CHECK (name <> ''),
    attempts    integer NOT NULL,
    needs       text,
    prefers     text,
    concurrency integer,
    gap         boolean NOT NULL,
    PRIMARY KEY (job_id, no)
);

CREATE TABLE intermission.edges (
    job_id   bigint NOT NULL REFERENCES intermission.jobs (id) ON DELETE CASCADE,
    step     integer NOT NULL,
    upstream integer NOT NULL,
    kind     text NOT NULL CHECK (kind IN ('one', 'same', 'all')),
    plan     integer, -- the plan behind the upstream step of an 'all' edge
    PRIMARY KEY (job_id, step, upstream)
);

-- No foreign key to the jobs: it would look at the job once for every task. Every statement that
-- adds tasks, and the one that removes a job, holds the job's row instead.
-- No index has a column that a renewal changes, and pages keep some room: a renewal stays on its
-- page and touches no index (a HOT update), so that heartbeats leave nothing for a vacuum.
CREATE TABLE intermission.tasks (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     bigint NOT NULL,
    fence      bigint NOT NULL DEFAULT 0,
    ready_s    double precision NOT NULL DEFAULT 0,
    lease_s    double precision,
    progress   double precision NOT NULL DEFAULT 0,
    updated_ms bigint NOT NULL,
    started_ms bigint,
    ended_ms   bigint,
    step       integer NOT NULL,
    idx        integer NOT NULL,
    attempts   integer NOT NULL DEFAULT 0, -- ends that were the task's own
    lost       integer NOT NULL DEFAULT 0, -- how many workers vanished while they ran it
    refusals   integer NOT NULL DEFAULT 0, -- how many hosts said that they cannot run it
    begun      boolean NOT NULL DEFAULT false, -- whether whoever claimed it has started it
    adopted    boolean NOT NULL DEFAULT false,
    gap        boolean NOT NULL DEFAULT false, -- stopped, and fan-ins go ahead without it
    state      text NOT NULL,
    key        text NOT NULL CHECK (key <> ''),
    worker     text,
    token      text,
    chunk      text,
    receipt    text, -- the key its receipt was written under; NULL for a step that is not durable
    files      text, -- the artifacts of the receipt, as JSON
    result     text,
    error      text,
    code       text, -- the reason of its last end
    message    text,
    lost_on    text, -- the workers that vanished while they ran it
    told       integer, -- the progress that the last event told, in hundredths
    told_ms    bigint, -- both take no room in tasks that told none
    UNIQUE (job_id, step, idx)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05
);

-- The states partition the tasks: blocked, claimable, held, stopped, and done, which needs no
-- index. What is finished is in none of them, so a claim costs the same beside any number of it.
-- They are in the order of `id + 0`, which no other index has: a statement that asks for the first
-- in that order gets exactly this index, whatever the planner believes about the table. Given the
-- choice, it would look for a task that is not there all along the primary key.
CREATE INDEX tasks_blocked ON intermission.tasks (job_id, step, idx)
    WHERE state = 'blocked';
CREATE INDEX tasks_claimable ON intermission.tasks (job_id, step, (id + 0))
    WHERE state IN ('pending', 'retrying', 'abandoned', 'corrupt');
CREATE INDEX tasks_held ON intermission.tasks (job_id, step, (id + 0))
    WHERE state IN ('leased', 'running');
CREATE INDEX tasks_stopped ON intermission.tasks (job_id, step, (id + 0))
    WHERE state IN ('failed', 'cancelled');
-- For lists in pages, and for nothing else: a plan that looks for one task of a job along this, and
-- was made when the job was small, would be kept when it is large.
CREATE INDEX tasks_of_job ON intermission.tasks ((job_id + 0), id);
CREATE INDEX tasks_with_files ON intermission.tasks (job_id, id) WHERE files IS NOT NULL;

-- The tokens that tasks were deferred under, with the fence of that attempt. They stay, so that
-- whoever comes late with a result can be told what became of the task.
CREATE TABLE intermission.deferrals (
    token   text NOT NULL,
    task_id bigint NOT NULL,
    fence   bigint NOT NULL,
    PRIMARY KEY (token, task_id)
);
CREATE INDEX deferrals_of_task ON intermission.deferrals (task_id);

-- Hosts that gave a task back because they cannot run it, and until when they do not get it.
CREATE TABLE intermission.refusals (
    task_id bigint NOT NULL,
    host    text NOT NULL,
    code    text NOT NULL,
    message text NOT NULL,
    until_s double precision NOT NULL,
    PRIMARY KEY (task_id, host)
);

-- How many tasks of a step are in a state, as changes to be added up: for display alone, never
-- for a decision. One row per step and state would make every claim of a job wait for the last.
CREATE TABLE intermission.counts (
    job_id bigint NOT NULL,
    step   integer NOT NULL,
    state  text NOT NULL,
    n      bigint NOT NULL
);
CREATE INDEX counts_of_job ON intermission.counts (job_id);

-- A row is written first in every change, so that it tells, after a connection was lost, whether
-- the change was made. The next change of the same ledger removes it.
CREATE TABLE intermission.changes (
    token bigint PRIMARY KEY,
    at_s  double precision NOT NULL
);

-- Every change of a task's or a job's state becomes an event, by triggers that no statement can
-- forget; and an event that would be illegal cannot be written, so neither can the change.
CREATE TABLE intermission.events (
    seq     bigint GENERATED ALWAYS AS IDENTITY (MINVALUE 0 START 0) PRIMARY KEY,
    at_ms   bigint NOT NULL,
    job_id  bigint NOT NULL,
    task_id bigint,
    fence   bigint,
    step    integer, -- of the task
    was     text,
    now     text NOT NULL,
    worker  text,
    code    text, -- the reason, where an attempt ended
    message text,
    progress double precision, -- where a task makes progress, and its state stays
    CONSTRAINT legal_task_transition CHECK (task_id IS NULL
        OR progress IS NOT NULL AND was = 'running' AND now = 'running' OR CASE was
        WHEN 'blocked' THEN now IN ('pending', 'cancelled')
        WHEN 'pending' THEN now IN ('leased', 'done', 'cancelled', 'blocked')
        WHEN 'leased' THEN now IN
            ('running', 'done', 'retrying', 'failed', 'abandoned', 'cancelled', 'blocked')
        WHEN 'running' THEN now IN
            ('done', 'retrying', 'failed', 'abandoned', 'cancelled', 'blocked')
        WHEN 'retrying' THEN now IN ('leased', 'done', 'cancelled', 'blocked', 'pending')
        WHEN 'abandoned' THEN now IN
            ('leased', 'running', 'done', 'retrying', 'failed', 'cancelled', 'blocked')
        WHEN 'corrupt' THEN now IN ('leased', 'done', 'cancelled', 'blocked')
        WHEN 'done' THEN now IN ('corrupt', 'blocked')
        WHEN 'failed' THEN now IN ('pending', 'blocked')
        WHEN 'cancelled' THEN now IN ('pending', 'blocked')
        ELSE false END),
    CONSTRAINT legal_job_transition CHECK (task_id IS NOT NULL OR CASE was
        WHEN 'pending' THEN now IN ('running', 'draining', 'done', 'failed', 'cancelled')
        WHEN 'running' THEN now IN ('draining', 'done', 'failed', 'cancelled')
        WHEN 'draining' THEN now IN ('running', 'done', 'failed', 'cancelled')
        WHEN 'done' THEN now = 'running'
        WHEN 'failed' THEN now IN ('running', 'cancelled')
        WHEN 'cancelled' THEN now = 'running'
        ELSE was IS NULL AND now = 'pending' END)
);
CREATE INDEX events_of_job ON intermission.events (job_id, seq);
SELECT setval('intermission.events_seq_seq', 0); -- the first event is number 1

-- Numbers are given out before they are committed, so a reader could pass one by that appears
-- later. Each writer therefore holds, until its end, a lock that is named after the last number
-- given out before its own; a reader goes no further than the lowest such name.
CREATE FUNCTION intermission.announce_events() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock_shared((18766::bigint << 48) + last_value)
    FROM intermission.events_seq_seq;
$$;

-- Up to which number every event is committed or will never be. Both parts are looked up one
-- after the other: a writer below `given_out` either still has its lock or can be seen.
CREATE FUNCTION intermission.events_settled() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    given_out bigint;
    unsettled bigint;
BEGIN
    SELECT last_value INTO given_out FROM intermission.events_seq_seq;
    SELECT min(((classid::bigint << 32) + objid::bigint) - (18766::bigint << 48)) INTO unsettled
    FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = 18766
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN least(given_out, unsettled);
END
$$;

-- A task of a step became claimable: claims are to find it. A row that is there is only kept, with a
-- lock that lets claims go on and no claim remove it; so of a claim that finds nothing any more and
-- a change that adds something, one sees the other.
CREATE FUNCTION intermission.open_step(job bigint, step_no integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM intermission.ready AS r
    WHERE r.job_id = job AND r.step = step_no AND r.parked = 0 FOR KEY SHARE;
    IF NOT FOUND THEN
        INSERT INTO intermission.ready (job_id, step, class, priority, turn, parked, begin_ms)
        SELECT job, step_no, s.class, j.priority,
            (SELECT q.turn FROM intermission.turns AS q WHERE q.job_id = job),
            -- Whether its time has come is seen by a claim; a job that runs has begun.
            CASE WHEN j.begin_ms > 0 AND j.state = 'pending' THEN 2 ELSE 0 END, j.begin_ms
        FROM intermission.jobs AS j, intermission.steps AS s
        WHERE j.id = job AND s.job_id = job AND s.no = step_no
          AND j.state IN ('pending', 'running', 'draining')
        ON CONFLICT (job_id, step) DO UPDATE SET parked = excluded.parked;
    END IF;
END
$$;

-- One call per statement, however many tasks it changed. Tasks that became claimable are told to the
-- notifier; equal notices of one transaction reach a listener once. The plan is kept from call to call,
-- and made when nobody knows how many tasks there will be: a nested loop would be made for one, and a
-- full join can be none.
CREATE FUNCTION intermission.tasks_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    place record;
    claimable boolean := false;
BEGIN
    PERFORM intermission.announce_events();
    FOR place IN WITH moves AS (
        INSERT INTO intermission.events
            (at_ms, job_id, task_id, step, was, now, fence, worker, code, message)
        SELECT n.updated_ms, n.job_id, n.id, n.step, w.state, n.state, n.fence,
               coalesce(n.worker, w.worker),
               CASE WHEN n.state NOT IN ('running', 'pending', 'leased') THEN n.code END, n.message
        FROM new_tasks AS n FULL JOIN old_tasks AS w ON w.id = n.id
        WHERE w.state IS DISTINCT FROM n.state
        ORDER BY n.id
        RETURNING job_id, step, was, now
    ), added AS (
        INSERT INTO intermission.counts (job_id, step, state, n)
        SELECT job_id, step, was, -count(*) FROM moves GROUP BY job_id, step, was
        UNION ALL
        SELECT job_id, step, now, count(*) FROM moves GROUP BY job_id, step, now
    )
    SELECT DISTINCT job_id, step FROM moves
    WHERE now IN ('pending', 'retrying', 'abandoned', 'corrupt') ORDER BY job_id, step
    LOOP
        claimable := true;
        PERFORM intermission.open_step(place.job_id, place.step);
    END LOOP;
    IF claimable THEN
        PERFORM pg_notify('intermission', '');
    END IF;
    IF EXISTS (SELECT 1 FROM old_tasks WHERE refusals > 0) THEN
        DELETE FROM intermission.refusals WHERE task_id IN (
            SELECT n.id FROM new_tasks AS n JOIN old_tasks AS w ON w.id = n.id
            WHERE w.refusals > 0 AND n.refusals = 0);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION intermission.tasks_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO intermission.counts (job_id, step, state, n)
    SELECT job_id, step, state, count(*) FROM new_tasks GROUP BY job_id, step, state;
    PERFORM intermission.open_step(p.job_id, p.step) FROM (
        SELECT DISTINCT job_id, step FROM new_tasks WHERE state = 'pending' ORDER BY job_id, step
    ) AS p;
    IF FOUND THEN
        PERFORM pg_notify('intermission', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION intermission.tasks_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO intermission.counts (job_id, step, state, n)
    SELECT job_id, step, state, -count(*) FROM old_tasks GROUP BY job_id, step, state;
    IF EXISTS (SELECT 1 FROM old_tasks WHERE refusals > 0) THEN
        DELETE FROM intermission.refusals WHERE task_id IN (SELECT id FROM old_tasks);
    END IF;
    DELETE FROM intermission.deferrals WHERE task_id IN (SELECT id FROM old_tasks);
    RETURN NULL;
END
$$;

CREATE FUNCTION intermission.job_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM intermission.announce_events();
    IF TG_OP = 'INSERT' THEN
        INSERT INTO intermission.events (at_ms, job_id, now)
        VALUES (new.created_ms, new.id, new.state);
        INSERT INTO intermission.turns (job_id) VALUES (new.id);
    ELSE
        INSERT INTO intermission.events (at_ms, job_id, was, now, message)
        VALUES (new.updated_ms, new.id, old.state, new.state, new.reason);
        IF new.state NOT IN ('pending', 'running', 'draining') THEN
            DELETE FROM intermission.ready WHERE job_id = new.id;
        ELSIF old.state NOT IN ('pending', 'running', 'draining') THEN
            PERFORM intermission.open_step(s.job_id, s.no) FROM intermission.steps AS s
            WHERE s.job_id = new.id AND EXISTS (
                SELECT 1 FROM intermission.tasks AS t WHERE t.job_id = s.job_id AND t.step = s.no
                AND t.state IN ('pending', 'retrying', 'abandoned', 'corrupt'));
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER changed AFTER UPDATE ON intermission.tasks
    REFERENCING OLD TABLE AS old_tasks NEW TABLE AS new_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION intermission.tasks_changed();
CREATE TRIGGER added AFTER INSERT ON intermission.tasks
    REFERENCING NEW TABLE AS new_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION intermission.tasks_added();
CREATE TRIGGER removed AFTER DELETE ON intermission.tasks
    REFERENCING OLD TABLE AS old_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION intermission.tasks_removed();
CREATE TRIGGER started AFTER INSERT ON intermission.jobs
    FOR EACH ROW EXECUTE FUNCTION intermission.job_changed();
CREATE TRIGGER changed AFTER UPDATE OF state ON intermission.jobs
    FOR EACH ROW WHEN (old.state <> new.state) EXECUTE FUNCTION intermission.job_changed();
