/* native/model/worker.pml: the threads of one rank make their calls in a group one after the other.
 *
 * Models (native/worker.cpp): Worker::run(), start(), serve(), close(), Completion::finish() and
 * Completion::wait(), with the mutex, the condition variable and the thread that starts and ends.
 *
 * During Group::run() no other thread may be in the group; group.pml shows that it ends (stop() ends
 * a wait). The idle time of serve() and the drain of close() may be over at any moment; with
 * IDLE_ONLY and DRAIN_FOREVER they cannot hide a lost wake-up. A wait on the condition variable is:
 * release the lock and queue in one step, be woken, take the lock again. Accesses under the lock are
 * one step.
 *
 * Not modelled: exceptions, Ctrl-C in run() (it still waits for the completion), sleeping on the
 * completion's WaitWord (wait.pml).
 */
#ifndef CALLERS
#define CALLERS 2 /* threads that call run() once */
#endif
#ifndef STARTS
#define STARTS 2 /* calls that one more thread starts, one after the other */
#endif
#ifndef CLOSERS
#define CLOSERS 1 /* threads that call close() */
#endif

#define TASKS (CALLERS + STARTS)
#define THREADS (2 * TASKS + CLOSERS + 3)

/* ---- Worker ---- */
bool mutex_, busy_, serving_, closed_;
byte queue_[TASKS], taken, put; /* the queue: put - taken tasks */
bool done[TASKS];     /* Completion */
bool queued[THREADS]; /* on the condition variable changed_ */
bool joinable;        /* thread_ */
byte running;         /* threads that are in serve(); joined once it is 0 */

bool group_closed;    /* Group::closed_ */

/* ---- what the assertions need to know ---- */
byte inside;  /* threads in Group::run() */
byte closed;  /* times that Group::close() has left the group */
byte finished;

#define empty_queue (put == taken)
#define lock() atomic { !mutex_ -> mutex_ = true }
#define unlock() mutex_ = false

inline notify_all() {
    d_step { k = 0; do :: k < THREADS -> queued[k] = false; k++ :: else -> break od; k = 0 }
}

#define WAIT(over) \
    do \
    :: over -> break \
    :: !(over) -> \
        atomic { queued[_pid] = true; unlock() }; \
        !queued[_pid]; \
        lock() \
    od

inline group_run() {
    atomic { inside++; assert(inside == 1); assert(closed == 0) };
    inside--
}

/* Under the lock; the caller has checked that the worker is not closed. */
inline start(task) {
    atomic { queue_[put] = task; put++ };
    if
    :: !serving_ ->
        if
        :: joinable -> running == 0; joinable = false /* it has decided to end */
        :: else
        fi;
        atomic { serving_ = true; joinable = true; running++; run Serve() }
    :: else
    fi;
#ifndef BUG_NO_NOTIFY
    notify_all()
#endif
}

proctype Serve() {
    byte task, k;
    bool work;
    lock();
    do
    :: true ->
        do /* wait_for(lock, idle_time, ...) */
        :: !busy_ && (closed_ || !empty_queue) -> work = true; break
        :: !(!busy_ && (closed_ || !empty_queue)) ->
            atomic { queued[_pid] = true; unlock() };
            if
            :: !queued[_pid] -> lock()
#ifdef IDLE_ONLY
            :: queued[_pid] && !closed_ && !busy_ && empty_queue -> /* only with nothing to do */
#else
            :: queued[_pid] -> /* waited for too long */
#endif
                queued[_pid] = false; lock();
                work = !busy_ && (closed_ || !empty_queue); break
            fi
        od;
        if
#ifdef BUG_END_WITHOUT_LOOK
        :: !work || (empty_queue && closed_ && !busy_) -> break
#else
        :: empty_queue && (closed_ || !work) && !busy_ -> break
#endif
        :: else
        fi;
        if
        :: busy_ || empty_queue
        :: else ->
            atomic { task = queue_[taken]; taken++; busy_ = true; unlock() };
            group_run();
            lock();
            atomic { busy_ = false; done[task] = true };
            notify_all()
        fi
    od;
    atomic { serving_ = false; unlock() };
    running--
}

proctype Caller(byte task) {
    byte k;
    lock();
    if
    :: closed_ -> unlock(); goto out /* throws: the group is closed */
    :: !closed_ && !busy_ && empty_queue ->
        atomic { busy_ = true; unlock() };
        group_run();
        lock();
        busy_ = false;
        notify_all();
        unlock()
    :: else ->
        start(task);
        unlock();
        done[task] /* completion->wait() */
    fi;
out:
    finished++
}

proctype Starter() {
    byte task = CALLERS, k;
    do
    :: task < TASKS ->
        lock();
        if
        :: closed_ -> unlock(); break
        :: else -> start(task); unlock()
        fi;
        task++
    :: else -> break
    od;
    /* wait() for what was started */
    atomic { k = CALLERS };
    do
    :: k < task -> done[k]; k++
    :: else -> break
    od;
    finished++
}

proctype Closer() {
    bool mine;
    byte k;
    lock();
    if
    :: !closed_ ->
        do /* wait_until(lock, deadline_after(drain_seconds), ...) */
        :: !busy_ && empty_queue -> break
        :: !(!busy_ && empty_queue) ->
            atomic { queued[_pid] = true; unlock() };
            if
            :: !queued[_pid] -> lock()
#ifndef DRAIN_FOREVER
            :: queued[_pid] -> queued[_pid] = false; lock(); break
#endif
            fi
        od;
        closed_ = true; /* and stop() */
        do
        :: atomic { !empty_queue -> done[queue_[taken]] = true; taken++ }
        :: empty_queue -> break
        od;
        notify_all()
    :: else
    fi;
    WAIT(!busy_);
    atomic { mine = joinable; joinable = false }; /* moved out: one of several joins it */
    unlock();
    if
    :: mine -> running == 0 /* join() */
    :: else
    fi;
    lock();
    if /* group_->close() */
    :: group_closed
    :: else -> group_closed = true; atomic { closed++; assert(closed == 1) }
    fi;
    unlock();
    finished++
}

init {
    byte k = 0;
    atomic {
        do :: k < CALLERS -> run Caller(k); k++ :: else -> break od;
        if :: STARTS > 0 -> run Starter() :: else -> finished++ fi;
        k = 0;
        do :: k < CLOSERS -> run Closer(); k++ :: else -> break od
    }
}

ltl ends { <>(finished == CALLERS + 1 + CLOSERS) }
